# The command line for diagnosing, without torch: docker run --rm -v "$PWD:/runs" IMAGE diagnose RUN
FROM python:3.13-slim AS build
WORKDIR /source
COPY . .
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.13-slim
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir "$(echo /wheels/evenstep-*.whl)[all]" && rm -r /wheels \
    && useradd --create-home evenstep
USER evenstep
WORKDIR /runs
ENTRYPOINT ["evenstep"]
CMD ["--help"]
