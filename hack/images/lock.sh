#!/usr/bin/env bash
# Writes the locks of the two container images: the versions of requirements.lock, and only what each image needs.
# TensorFlow has a lock per variant, so that its gigabyte is a layer of its own.
set -euo pipefail
cd "$(dirname "$0")/../.."
compile() { "${UV:-.venv/bin/uv}" pip compile --quiet --python-version 3.11 --generate-hashes \
  --no-emit-index-url --no-emit-find-links "$@"; }
# The images are Debian 12 or later on amd64: glibc 2.36. libtpu has no wheel for an older one.
tensorflow() { compile --python-platform x86_64-manylinux_2_36 "$@" -; }

# The operator reads no data: what the records and the client need, 300 MB, is left out. NumPy is Optuna's, whose
# studies are in memory: SQLAlchemy, Alembic and Mako serve those in a database. tzdata: its times are UTC.
compile --universal --extra operator --extra sweep -c requirements.lock -o hack/images/operator.lock pyproject.toml \
  --no-emit-package google-cloud-storage --no-emit-package google-api-core --no-emit-package google-cloud-core \
  --no-emit-package google-resumable-media --no-emit-package googleapis-common-protos \
  --no-emit-package opentelemetry-api --no-emit-package proto-plus \
  --no-emit-package google-crc32c --no-emit-package pillow --no-emit-package pyarrow --no-emit-package protobuf \
  --no-emit-package sqlalchemy --no-emit-package alembic --no-emit-package mako --no-emit-package markupsafe \
  --no-emit-package pathspec --no-emit-package tzdata
# The trainer speaks to no cluster: the client's kubernetes, and what it alone stands on, is left out. tensorboard goes
# with the TensorFlow of each variant, which must have its number.
compile --universal --extra trainer -c requirements.lock -o hack/images/trainer.lock pyproject.toml \
  --no-emit-package kubernetes --no-emit-package durationpy --no-emit-package oauthlib \
  --no-emit-package requests-oauthlib --no-emit-package websocket-client --no-emit-package python-dateutil \
  --no-emit-package aiohttp --no-emit-package aiohappyeyeballs --no-emit-package aiosignal --no-emit-package attrs \
  --no-emit-package frozenlist --no-emit-package multidict --no-emit-package propcache --no-emit-package tzdata \
  --no-emit-package yarl --no-emit-package tensorboard
# tf-keras asks for `tensorflow` by name, which must not come in beside the variant: it is skipped, and pip gets --no-deps.
printf 'tensorflow-cpu\ntf-keras\ntensorboard\n' | tensorflow -c requirements.lock -o hack/images/tensorflow-cpu.lock --no-emit-package tensorflow
printf 'tensorflow[and-cuda]==2.21.0\ntf-keras\ntensorboard\n' | tensorflow -c requirements.lock -o hack/images/tensorflow-gpu.lock
# The last release for TPUs, as in pyproject.toml; it wants the Keras 2 of the same number.
printf 'tensorflow-tpu==2.20.0\nlibtpu==0.0.20\ntf-keras==2.20.1\n' | tensorflow -c hack/images/trainer.lock -o hack/images/tensorflow-tpu.lock \
  --no-emit-package tensorflow
