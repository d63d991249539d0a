# Three images: `--target operator`, `--target board` and `--target trainer`. `make images` builds them and fills the
# build context, build/images/context: the locks, the project's wheel, the digits. The order of layers is the order of
# change: a change of code rebuilds only the last, which is small. Two builds from one context and one base give the
# same bytes, if the builder sets the times of files: `podman build --timestamp`, BuildKit's rewrite-timestamp.
# A release gives the base by digest: kind/base_image.py refuses another.
ARG BASE=python:3.11-slim
ARG VARIANT=cpu

FROM ${BASE} AS system
# No pip in the environment: the base's own installs into it. A program that looks up user 1000 finds a name; useradd would
# write the day into /etc/shadow.
RUN python3 -m venv --without-pip /opt/venv && \
    echo 'mptraining:x:1000:1000::/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'mptraining:x:1000:' >> /etc/group
# Nothing writes outside /tmp, so the root file system can be read-only. PYTHONSAFEPATH keeps a job's folder, which
# may hold a keras.py, out of the way of imports.
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp XDG_CACHE_HOME=/tmp/.cache CUDA_CACHE_PATH=/tmp/.nv LANG=C.UTF-8 \
    PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

# The host's pip configuration and certificates are secrets of the build: mounted where they are given, never kept.
# What is installed is compiled by prune.py, whose files do not depend on the time: the order of a set's constants
# would follow the seed of hashes.
FROM system AS operator-dependencies
COPY operator.lock prune.py /opt/mptraining/
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt PIP_CONFIG_FILE=/run/secrets/pip.conf \
    pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --no-deps --require-hashes \
      -r /opt/mptraining/operator.lock && \
    PYTHONHASHSEED=0 python /opt/mptraining/prune.py packages /opt/venv/lib/python3.*/site-packages --sourceless && \
    PYTHONHASHSEED=0 python /opt/mptraining/prune.py root /image /opt/venv

FROM system AS operator-project
COPY mptraining-*.whl prune.py /opt/mptraining/
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --no-deps --no-index /opt/mptraining/*.whl && \
    PYTHONHASHSEED=0 python /opt/mptraining/prune.py project /image /opt/venv mptraining_api mptraining_operator

# Neither a shell nor a package manager: an attacker in the operator has Python, and its rights.
FROM scratch AS operator
COPY --from=operator-dependencies /image /
COPY --from=operator-project /image /
ENV PATH=/opt/venv/bin HOME=/tmp XDG_CACHE_HOME=/tmp/.cache LANG=C.UTF-8 \
    PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "mptraining_operator"]

# Not the operator's: the board reads files that users write, and needs neither its rights nor its packages. Not the
# trainer's: TensorFlow is 1.5 GB that it never imports.
FROM system AS board-dependencies
COPY board.lock prune.py /opt/mptraining/
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt PIP_CONFIG_FILE=/run/secrets/pip.conf \
    pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --no-deps --require-hashes \
      -r /opt/mptraining/board.lock && \
    PYTHONHASHSEED=0 python /opt/mptraining/prune.py packages /opt/venv/lib/python3.*/site-packages --sourceless && \
    PYTHONHASHSEED=0 python /opt/mptraining/prune.py root /image /opt/venv

FROM system AS board-project
COPY mptraining-*.whl prune.py /opt/mptraining/
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --no-deps --no-index /opt/mptraining/*.whl && \
    PYTHONHASHSEED=0 python /opt/mptraining/prune.py project /image /opt/venv mptraining_api mptraining_records mptraining

FROM scratch AS board
COPY --from=board-dependencies /image /
COPY --from=board-project /image /
ENV PATH=/opt/venv/bin HOME=/tmp XDG_CACHE_HOME=/tmp/.cache LANG=C.UTF-8 \
    PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "mptraining.board.in_cluster"]

# The trainer keeps the base with its shell and pip: programs call commands, and jobs install requirements.
FROM system AS trainer-dependencies
COPY trainer.lock prune.py /opt/mptraining/
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt PIP_CONFIG_FILE=/run/secrets/pip.conf \
    pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --no-deps --require-hashes \
      -r /opt/mptraining/trainer.lock && \
    PYTHONHASHSEED=0 python /opt/mptraining/prune.py packages /opt/venv/lib/python3.*/site-packages

FROM trainer-dependencies AS tensorflow
ARG VARIANT
COPY tensorflow-${VARIANT}.lock /opt/mptraining/
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt PIP_CONFIG_FILE=/run/secrets/pip.conf \
    pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --no-deps --require-hashes \
      -r /opt/mptraining/tensorflow-${VARIANT}.lock && \
    PYTHONHASHSEED=0 python /opt/mptraining/prune.py packages /opt/venv/lib/python3.*/site-packages

FROM tensorflow AS trainer-cpu
FROM tensorflow AS trainer-gpu
FROM tensorflow AS trainer-tpu
# Keras 3 hardly knows TPUStrategy.
ENV TF_USE_LEGACY_KERAS=1

FROM system AS trainer-project
COPY mptraining-*.whl prune.py /opt/mptraining/
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-compile --no-deps --no-index /opt/mptraining/*.whl && \
    PYTHONHASHSEED=0 python /opt/mptraining/prune.py project /image /opt/venv \
      mptraining_api mptraining_records mptraining_trainer mptraining

FROM trainer-${VARIANT} AS trainer
COPY digits /opt/mptraining/digits
COPY --from=trainer-project /image /
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "mptraining_trainer"]
