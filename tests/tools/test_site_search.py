"""The search of the built site, in Chromium: questions of a new user, answered in the first three hits.

`make test-docs` builds the site and runs this.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.left_out import leave_out

pytestmark = pytest.mark.browser

SITE = Path(__file__).parents[2] / "build" / "site"
# The index of all pages is built by the browser, on a busy machine too.
PATIENCE = 60_000


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    path = shutil.which("chromium")
    if path is None:
        leave_out("no chromium: run `make chromium`, or install Debian's package chromium")
    if not (SITE / "index.html").exists():
        leave_out("no site: run `make test-docs`")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(SITE)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
            opened = browser.new_page(viewport={"width": 1300, "height": 900})
            opened.set_default_timeout(PATIENCE)
            opened.goto(f"http://127.0.0.1:{server.server_address[1]}/index.html")
            yield opened
            browser.close()
    finally:
        server.shutdown()
        server.server_close()


def hits(page: Page, question: str) -> list[list[str]]:
    """Return the links of the first three hits: each is a page with the sections that are shown below it."""
    box = page.locator("input.md-search__input")
    box.click()
    box.fill("")
    page.wait_for_function("!document.querySelector('.md-search-result__item')")
    box.press_sequentially(question)
    page.locator(".md-search-result__item").first.wait_for()
    # Answers arrive while the question is typed; the last one is that of the whole question.
    page.wait_for_function(
        """question => {
            const link = document.querySelector('.md-search-result__item a');
            const last = question.split(' ').at(-1);
            return link && decodeURIComponent(new URL(link.href).searchParams.get('h') || '').split(' ').length > 0
                && document.querySelector('.md-search__input').value.endsWith(last);
        }""",
        arg=question,
    )
    page.wait_for_timeout(700)
    found = page.locator(".md-search-result__item").all()[:3]
    links = [item.locator("xpath=./a[contains(@class, 'md-search-result__link')]").all() for item in found]
    return [[_place(link.get_attribute("href") or "") for link in each] for each in links]


def _place(link: str) -> str:
    address, _, anchor = link.partition("#")
    path = address.partition("?")[0].rpartition("://")[2].partition("/")[2] if "://" in address else address
    return f"{path.partition('?')[0]}{'#' if anchor else ''}{anchor}"


@pytest.mark.parametrize(
    ("question", "answers"),
    [
        ("loss is nan", ("faq.html#the-loss-is-nan", "guide/numerics.html#non-finite-numbers")),
        ("out of memory", ("faq.html#out-of-memory-on-a-gpu-what-can-i-change",)),
        ("resume after preemption", ("guide/train.html#checkpoints-and-resume", "faq.html#a-run-was-interrupted")),
        ("spot machines", ("guide/kubernetes.html#accelerators", "guide/gke.html", "faq.html#can-i-use-spot-machines")),
        ("multiple gpus", ("guide/train.html#replicas-and-workers", "faq.html#how-do-i-train-on-multiple-gpus")),
        ("batch size", ("guide/train.html#training", "faq.html#what-batch-size-do-i-choose")),
        ("convert images to tfrecords", ("guide/data.html", "faq.html#my-data-is-in-folders")),
        ("install operator helm", ("guide/operate.html", "reference/chart.html", "guide/install.html")),
        ("job pending", ("faq.html#the-job-stays-pending-or-queued", "guide/kubernetes.html")),
        ("run without a cluster", ("faq.html#can-i-run-it-without-a-cluster",)),
        ("migrate tfjob", ("guide/migrate.html#moving-from-kubeflows-tfjob",)),
        ("mixed precision not faster", ("faq.html#why-is-mixed-precision-not-faster",)),
        ("open notebook in colab", ("guide/notebooks.html", "notebooks/")),
        ("tune hyperparameters", ("guide/sweeps.html", "notebooks/sweep.html")),
        # Words of a message.
        ("no nodeSelector names their type", ("reference/messages.html#requests-accelerators-and-no-nodeselector",)),
        ("DeadlineExceeded", ("reference/messages.html#reasons", "guide/reference.html#reasons")),
    ],
)
def test_the_answer_is_in_the_first_three_hits(question: str, answers: tuple[str, ...], page: Page) -> None:
    found = hits(page, question)
    assert any(link.startswith(answers) for each in found for link in each), found


def test_llms_txt_lists_the_generated_pages() -> None:
    if not (SITE / "llms.txt").exists():
        leave_out("no site: run `make test-docs`")
    listed = (SITE / "llms.txt").read_text(encoding="utf-8")
    assert all(f"/{page})" in listed for page in ("reference/python.md", "notebooks/train.md", "security.md"))
