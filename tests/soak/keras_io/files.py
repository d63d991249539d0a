"""Small synthetic files in place of those that scripts download: the content of an address, or of a folder.

An archive has the names inside that the script looks for. Texts are sentences of a small vocabulary, pictures noise.
"""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np

# The first bytes of a file of pretrained weights: `stubs` keeps the random weights instead of reading it.
NO_WEIGHTS = b"no weights: the model keeps its random ones"
_TEXT = (
    "the a film plot actor scene story was is very good bad great dull long short fine poor warm cold bright dark "
    "we they she he it and but so then never always often once more less old new first last best worst"
)
_WORDS = tuple(_TEXT.split())


def content(address: str) -> bytes:
    """Return the bytes that replace the file at `address`. Raises LookupError for an address that is not known."""
    name = Path(urlsplit(address).path).name
    if "drive.google.com" in address:
        return zipped({f"img_align_celeba/{each:06}.jpg": picture(each, (78, 64)) for each in range(32)})
    if name.endswith(".h5") or "weights" in name:
        return NO_WEIGHTS
    if name.endswith((".jpg", ".jpeg", ".png")):
        return picture(0, (200, 200), name.rpartition(".")[2])
    made = _BY_NAME.get(name)
    if made is None:
        raise LookupError(f"tests/soak/keras_io/files.py has no file for {address}")
    return made()


def placed(script: str) -> Mapping[str, bytes]:
    """Return the files that a shell line of `script` would write into its folder (or, from `HOME/` on, the user's), by
    path.

    `script` is the path below the folder of scripts, without `.py` and the year of its text.
    """
    made = _BY_SCRIPT.get(script)
    return made() if made else {}


def picture(seed: int, size: tuple[int, int], kind: str = "jpg", *, levels: tuple[int, int] = (0, 256)) -> bytes:
    """Return an encoded image of noise, of `size` (width, height)."""
    from PIL import Image

    draw = np.random.default_rng(seed)
    shape = (size[1], size[0]) if levels != (0, 256) else (size[1], size[0], 3)
    buffer = io.BytesIO()
    pixels = draw.integers(levels[0], levels[1], shape).astype("uint8")
    Image.fromarray(pixels).save(buffer, "PNG" if kind == "png" else "JPEG")
    return buffer.getvalue()


def sentence(seed: int, words: int = 12) -> str:
    draw = np.random.default_rng(seed)
    return " ".join(_WORDS[each] for each in draw.integers(0, len(_WORDS), words))


def zipped(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def tarred(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _numbers(rows: int, columns: int, seed: int = 0, separator: str = ",", digits: int = 3) -> str:
    values = np.random.default_rng(seed).normal(size=(rows, columns))
    return "\n".join(separator.join(f"{each:.{digits}f}" for each in row) for row in values) + "\n"


def _reviews() -> dict[str, bytes]:
    words = {"pos": "good great", "neg": "bad dull"}
    found = {
        f"aclImdb/{part}/{mood}/{each}_1.txt": f"{words[mood]} {sentence(each, 40)}.".encode()
        for part in ("train", "test")
        for mood in ("pos", "neg")
        # So that a validation split of a fifth leaves even numbers, as with the original.
        for each in range(50)
    }
    extra = {
        f"aclImdb/{part}/{name}": b"-\n" for part in ("train", "test") for name in ("labeledBow.feat", "urls_pos.txt")
    }
    return found | extra | {f"aclImdb/train/unsup/{each}_0.txt": sentence(each).encode() for each in range(4)}


def _translations(third: str = "") -> str:
    lines = (f"{sentence(each, 3 + each % 4)}\t{sentence(each + 1000, 3 + each % 5)}{third}" for each in range(160))
    return "\n".join(lines) + "\n"


def _ford() -> bytes:
    signals = np.random.default_rng(0).normal(size=(40, 500))
    lines = ("\t".join([str(1 - 2 * (at % 2)), *(f"{each:.4f}" for each in row)]) for at, row in enumerate(signals))
    return ("\n".join(lines) + "\n").encode()


def _days(jump: float = 0.0) -> bytes:
    """One value each five minutes for three days; some hours of the first two are higher by `jump`."""
    values = np.sin(np.arange(864) / 45.0) * 20 + np.random.default_rng(0).normal(size=864) + 50
    values[250:330] += jump
    stamps = np.datetime64("2014-04-01T00:00") + np.arange(864) * np.timedelta64(5, "m")
    lines = (f"{str(at).replace('T', ' ')}:00,{value:.4f}" for at, value in zip(stamps, values, strict=True))
    return ("timestamp,value\n" + "\n".join(lines) + "\n").encode()


def _climate() -> bytes:
    header = (
        '"Date Time","p (mbar)","T (degC)","Tpot (K)","Tdew (degC)","rh (%)","VPmax (mbar)","VPact (mbar)",'
        '"VPdef (mbar)","sh (g/kg)","H2OC (mmol/mol)","rho (g/m**3)","wv (m/s)","max. wv (m/s)","wd (deg)"'
    )
    # More than the 300,693 rows that the script trains on would be as many as the original; this is a share.
    rows = _numbers(6000, 14).splitlines()
    lines = (f"01.01.2009 {at // 6 % 24:02}:{at % 6}0:00,{row}" for at, row in enumerate(rows))
    return zipped({"jena_climate_2009_2016.csv": (header + "\n" + "\n".join(lines) + "\n").encode()})


def _ratings(separator: str, header: str) -> str:
    draw = np.random.default_rng(0)
    rows = zip(draw.integers(1, 60, 800), draw.integers(1, 90, 800), draw.integers(1, 6, 800), strict=True)
    return header + "".join(
        f"{user}{separator}{movie}{separator}{stars}{separator}978300{user:03}\n" for user, movie, stars in rows
    )


def _movies() -> bytes:
    movies = "movieId,title,genres\n" + "".join(f"{each},Film {each} (1999),Drama|Comedy\n" for each in range(1, 91))
    ratings = _ratings(",", "userId,movieId,rating,timestamp\n")
    return zipped({"ml-latest-small/ratings.csv": ratings.encode(), "ml-latest-small/movies.csv": movies.encode()})


def _hearts() -> bytes:
    draw = np.random.default_rng(0)
    header = "age,sex,cp,trestbps,chol,fbs,restecg,thalach,exang,oldpeak,slope,ca,thal,target\n"
    thal = ("fixed", "normal", "reversible")
    rows = (
        f"{draw.integers(30, 75)},{draw.integers(2)},{draw.integers(5)},{draw.integers(95, 180)},"
        f"{draw.integers(130, 400)},{draw.integers(2)},{draw.integers(3)},{draw.integers(90, 200)},"
        f"{draw.integers(2)},{draw.random() * 4:.1f},"
        f"{draw.integers(1, 4)},{draw.integers(4)},{thal[draw.integers(3)]},{draw.integers(2)}\n"
        for _ in range(160)
    )
    return (header + "".join(rows)).encode()


def _adults(end: str = "") -> bytes:
    """UCI's census of adults: 14 columns and the bracket, which ends with a dot in the test file."""
    draw = np.random.default_rng(0)
    works = ("Private", "State-gov", "Self-emp-inc")
    schools = ("Bachelors", "HS-grad", "Masters")
    rows = (
        f"{draw.integers(18, 80)}, {works[draw.integers(3)]}, {draw.integers(10_000, 400_000)}, "
        f"{schools[draw.integers(3)]}, {draw.integers(1, 16)}, Never-married, "
        f"{('Sales', 'Tech-support')[draw.integers(2)]}, Not-in-family, White, {('Male', 'Female')[draw.integers(2)]}, "
        f"{draw.integers(9000)}, {draw.integers(3000)}, {draw.integers(20, 60)}, United-States, "
        f"{('<=50K', '>50K')[draw.integers(2)]}{end}\n"
        for _ in range(300)
    )
    return (("|1x3 Cross validator\n" if end else "") + "".join(rows)).encode()


def _census() -> bytes:
    """UCI's census income: 41 columns and the level; numbers where the script takes numbers."""
    draw = np.random.default_rng(0)
    numeric = {0, 5, 16, 17, 18, 24, 30, 39}
    rows = []
    for each in range(300):
        cells = [
            str(int(draw.integers(0, 90))) if at in numeric else f" kind{int(draw.integers(3))}" for at in range(41)
        ]
        rows.append(",".join([*cells, " - 50000." if each % 3 else " 50000+."]))
    return gzip.compress(("\n".join(rows) + "\n").encode())


def _forest() -> bytes:
    """UCI's covertype: 10 numbers, 4 and 40 columns of which one is 1, and the class from 1 to 7."""
    draw = np.random.default_rng(0)
    rows = []
    for each in range(700):
        areas, soils = np.zeros(4, int), np.zeros(40, int)
        areas[draw.integers(4)] = soils[draw.integers(40)] = 1
        rows.append(",".join(map(str, [*draw.integers(0, 300, 10), *areas, *soils, each % 7 + 1])))
    return gzip.compress(("\n".join(rows) + "\n").encode())


def _news() -> bytes:
    groups = ("comp.graphics", "rec.autos", "sci.space", "alt.atheism")
    head = "\n".join(f"Header-{each}: x" for each in range(10))
    posts = {
        f"20_newsgroup/{group}/{38900 + each}": f"{head}\n{group} {sentence(each, 60)}\n".encode()
        for group in groups
        for each in range(60, 100)
    }
    return tarred(posts)


def _traffic() -> bytes:
    distances = np.abs(np.random.default_rng(0).normal(size=(228, 228))) * 10_000
    table = "\n".join(",".join(f"{each:.1f}" for each in row) for row in distances)
    return zipped({"PeMSD7_W_228.csv": table.encode(), "PeMSD7_V_228.csv": _numbers(600, 228, 1).encode()})


def _segmentation() -> bytes:
    return tarred(
        {
            f"BSR/BSDS500/data/images/{part}/{each}.jpg": picture(each, (321, 321))
            for part, count in (("train", 12), ("val", 6), ("test", 10))
            for each in range(count)
        }
    )


def _frames() -> bytes:
    """mnist_test_seq.npy: (20 frames, sequences, 64, 64)."""
    buffer = io.BytesIO()
    np.save(buffer, np.random.default_rng(0).integers(0, 255, (20, 10, 64, 64)).astype("uint8"))
    return buffer.getvalue()


def _captchas() -> dict[str, bytes]:
    draw = np.random.default_rng(0)
    names = ("".join("2345678bcdefgmnpwxy"[at] for at in draw.integers(0, 19, 5)) for _ in range(48))
    return {f"captcha_images_v2/{name}.png": picture(at, (200, 50), "png") for at, name in enumerate(names)}


def _pets() -> dict[str, bytes]:
    photos = {f"images/cat_{each:03}.jpg": picture(each, (96, 80)) for each in range(1040)}
    return photos | {
        f"annotations/trimaps/cat_{each:03}.png": picture(each, (96, 80), "png", levels=(1, 4)) for each in range(1040)
    }


_BY_NAME: Mapping[str, Callable[[], bytes]] = {
    "nietzsche.txt": lambda: "\n".join(sentence(each, 20) + "." for each in range(20)).encode(),
    "FordA_TRAIN.tsv": _ford,
    "FordA_TEST.tsv": _ford,
    "art_daily_small_noise.csv": _days,
    "art_daily_jumpsup.csv": lambda: _days(2000.0),
    "jena_climate_2009_2016.csv.zip": _climate,
    "ml-latest-small.zip": _movies,
    "ml-1m.zip": lambda: zipped({"ml-1m/ratings.dat": _ratings("::", "").encode()}),
    "heart.csv": _hearts,
    "adult.data": _adults,
    "adult.test": lambda: _adults("."),
    "census-income.data.gz": _census,
    "census-income.test.gz": _census,
    "covtype.data.gz": _forest,
    "fra-eng.zip": lambda: zipped({"fra.txt": _translations("\tCC-BY").encode()}),
    "spa-eng.zip": lambda: zipped({"spa-eng/spa.txt": _translations().encode()}),
    "aclImdb_v1.tar.gz": lambda: tarred(_reviews()),
    "news20.tar.gz": _news,
    "PeMSD7_Full.zip": _traffic,
    "BSR_bsds500.tgz": _segmentation,
    "mnist_test_seq.npy": _frames,
}
_BY_SCRIPT: Mapping[str, Callable[[], Mapping[str, bytes]]] = {
    "structured_data/imbalanced_classification": lambda: {
        "creditcard.csv": (
            ",".join(f'"V{each}"' for each in range(31))
            + "\n"
            + "".join(f'{row},"{int(at % 10 == 0)}"\n' for at, row in enumerate(_numbers(400, 30).splitlines()))
        ).encode()
    },
    "nlp/pretrained_word_embeddings": lambda: {
        "glove.6B.100d.txt": "".join(
            f"{word} {row}\n"
            for word, row in zip(_WORDS, _numbers(len(_WORDS), 100, separator=" ").splitlines(), strict=True)
        ).encode()
    },
    "generative/text_generation_with_miniature_gpt": _reviews,
    "vision/image_classification_from_scratch": lambda: {
        f"PetImages/{kind}/{each}.jpg": picture(each, (200, 180)) for kind in ("Cat", "Dog") for each in range(16)
    },
    "vision/captcha_ocr": _captchas,
    "vision/oxford_pets_image_segmentation": _pets,
    "vision/siamese_network": lambda: {
        f"HOME/.keras/{side}/{each:03}.jpg": picture(each, (245, 200))
        for side in ("left", "right")
        for each in range(20)
    },
    "vision/zero_dce": lambda: {
        f"lol_dataset/{part}/low/{each}.png": picture(each, (300, 200), "png")
        for part, count in (("our485", 416), ("eval15", 3))
        for each in range(count)
    },
}
