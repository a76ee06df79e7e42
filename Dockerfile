# nlpkit for CPUs, without root: `docker build -t nlpkit .`; docs/start/install.md says how it runs.
FROM python:3.11-slim AS wheel
COPY . /src
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /dist /src

FROM python:3.11-slim
COPY constraints-cpu.txt /tmp/constraints.txt
# The wheel is mounted for this step alone, so that no layer keeps it.
RUN --mount=from=wheel,source=/dist,target=/dist \
    pip install --no-cache-dir --extra-index-url https://download.pytorch.org/whl/cpu \
        -c /tmp/constraints.txt /dist/*.whl \
    && rm /tmp/constraints.txt
RUN useradd --create-home --uid 1000 nlpkit
USER nlpkit
WORKDIR /work
ENTRYPOINT ["nlpkit"]
