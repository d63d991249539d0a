# Three images: `--target operator`, `--target board` and `--target trainer`. `make images` builds them and fills the
# build context, build/images/context: the locks, the project's wheel, the digits. The order of layers is the order of
# change: a change of code rebuilds only the last, which is small.
ARG BASE=python:3.11-slim
ARG VARIANT=cpu

FROM ${BASE} AS system
# No pip in the environment: the base's own installs into it. Whoever looks up user 1000 finds a name.
RUN python3 -m venv --without-pip /opt/venv && useradd --uid 1000 --no-create-home --home-dir /tmp mptraining
# Nothing writes outside /tmp, so the root file system can be read-only. PYTHONSAFEPATH keeps a job's folder, which
# may hold a keras.py, out of the way of imports.
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp XDG_CACHE_HOME=/tmp/.cache CUDA_CACHE_PATH=/tmp/.nv \
    PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1

# The host's pip configuration and certificates are secrets of the build: mounted where they are given, never kept.
FROM system AS operator-dependencies
COPY operator.lock /opt/mptraining/
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt PIP_CONFIG_FILE=/run/secrets/pip.conf \
    pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --require-hashes -r /opt/mptraining/operator.lock

FROM operator-dependencies AS operator
COPY mptraining-*.whl /tmp/
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --no-index /tmp/*.whl && rm /tmp/*.whl
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "mptraining_operator"]

# Not the operator's: the board reads files that users write, and needs neither its rights nor its packages. Not the
# trainer's: TensorFlow is 1.5 GB that it never imports.
FROM system AS board-dependencies
COPY board.lock /opt/mptraining/
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt PIP_CONFIG_FILE=/run/secrets/pip.conf \
    pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --require-hashes -r /opt/mptraining/board.lock

FROM board-dependencies AS board
COPY mptraining-*.whl /tmp/
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --no-index /tmp/*.whl && rm /tmp/*.whl
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "mptraining.board.in_cluster"]

FROM system AS trainer-dependencies
COPY trainer.lock /opt/mptraining/
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt PIP_CONFIG_FILE=/run/secrets/pip.conf \
    pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --require-hashes -r /opt/mptraining/trainer.lock

FROM trainer-dependencies AS tensorflow
ARG VARIANT
COPY tensorflow-${VARIANT}.lock /opt/mptraining/
# 287 MB of C++ headers go: they serve to compile operations, for which the image has no compiler.
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt PIP_CONFIG_FILE=/run/secrets/pip.conf \
    pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --require-hashes \
      -r /opt/mptraining/tensorflow-${VARIANT}.lock && \
    rm -rf /opt/venv/lib/python3*/site-packages/tensorflow/include

FROM tensorflow AS trainer-cpu
FROM tensorflow AS trainer-gpu
FROM tensorflow AS trainer-tpu
# Keras 3 hardly knows TPUStrategy.
ENV TF_USE_LEGACY_KERAS=1

FROM trainer-${VARIANT} AS trainer
COPY digits /opt/mptraining/digits
COPY mptraining-*.whl /tmp/
RUN pip --python /opt/venv/bin/python install --no-cache-dir --no-deps --no-index /tmp/*.whl && rm /tmp/*.whl
USER 1000:1000
WORKDIR /tmp
ENTRYPOINT ["python", "-m", "mptraining_trainer"]
