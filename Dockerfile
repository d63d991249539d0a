# Two images: `--target operator`, and `--target trainer` with VARIANT cpu, gpu or tpu. The build
# context is build/images/context, which `python -m hack.cluster.images context` fills: locks, the wheel, the digits.
ARG BASE=python:3.11-slim
ARG VARIANT=cpu

FROM ${BASE} AS system
# A program that looks up user 1000 finds a name.
RUN echo 'mptraining:x:1000:1000::/tmp:/usr/sbin/nologin' >> /etc/passwd && echo 'mptraining:x:1000:' >> /etc/group
# Nothing writes outside /tmp, so the root file system can be read-only. PYTHONSAFEPATH keeps a job's folder, which
# may hold a keras.py, out of the way of imports.
ENV PATH=/opt/venv/bin:$PATH HOME=/tmp XDG_CACHE_HOME=/tmp/.cache CUDA_CACHE_PATH=/tmp/.nv LANG=C.UTF-8 \
    PYTHONSAFEPATH=1 PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
WORKDIR /tmp

# The environment has no pip: the base's own installs into it. The host's pip configuration and certificates are secrets
# of the build: mounted where they are given, never kept.
FROM system AS installer
RUN python3 -m venv --without-pip /opt/venv
ENV PIP_NO_CACHE_DIR=1 PIP_NO_DEPS=1 PIP_CONFIG_FILE=/run/secrets/pip.conf

# The client for asyncio is half of its package. Only what the operator imports at its start is compiled.
FROM installer AS operator-packages
COPY operator.lock /opt/
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt \
    pip --python /opt/venv/bin/python install --no-compile --require-hashes -r /opt/operator.lock && \
    cd /opt/venv/lib/python3.*/site-packages && rm -r kubernetes/aio && find . -type d -name tests -prune -exec rm -r {} + && \
    PYTHONDONTWRITEBYTECODE= /opt/venv/bin/python -c "import aiohttp, kopf, kubernetes, pydantic"

# TensorFlow's headers are for those who build against it: there is no compiler.
FROM installer AS trainer-packages
ARG VARIANT
COPY trainer.lock tensorflow-${VARIANT}.lock /opt/
RUN --mount=type=secret,id=pip.conf --mount=type=secret,id=ca.crt \
    pip --python /opt/venv/bin/python install --require-hashes -r /opt/trainer.lock -r /opt/tensorflow-${VARIANT}.lock && \
    rm -r /opt/venv/lib/python3.*/site-packages/tensorflow/include

# The project alone, so that a change of code is a small layer.
FROM installer AS project
COPY mptraining-*.whl /opt/
RUN pip --python /opt/venv/bin/python install --no-index /opt/mptraining-*.whl

FROM system AS operator
COPY --from=operator-packages /opt/venv /opt/venv
COPY --from=project /opt/venv /opt/venv
USER 1000:1000
ENTRYPOINT ["python", "-m", "mptraining_operator"]

FROM system AS trainer-cpu
FROM system AS trainer-gpu
FROM system AS trainer-tpu
# Keras 3 hardly knows TPUStrategy.
ENV TF_USE_LEGACY_KERAS=1

# Programs call commands and jobs install requirements: the base has a shell and pip.
FROM trainer-${VARIANT} AS trainer
COPY --from=trainer-packages /opt/venv /opt/venv
COPY digits /opt/mptraining/digits
COPY --from=project /opt/venv /opt/venv
USER 1000:1000
ENTRYPOINT ["python", "-m", "mptraining_trainer"]
