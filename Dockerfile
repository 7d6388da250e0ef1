# A service that answers POST /predict with one model (docs/how-to/export.md).
#
#   docker build -t turnwise .
#   docker build -t turnwise --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
#   docker run -p 127.0.0.1:8000:8000 -v ./runs/first:/model:ro turnwise /model
#
# The second command builds for GPUs; run it with --gpus all and --device cuda.
ARG PYTHON=3.12
FROM python:${PYTHON}-slim
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu

WORKDIR /build
COPY pyproject.toml README.md LICENSE ./
COPY src src
COPY recipes recipes
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "torch>=2.11" \
    && pip install --no-cache-dir ".[onnx]" \
    && rm -rf /build \
    && useradd --create-home turnwise

WORKDIR /home/turnwise
USER turnwise
EXPOSE 8000
HEALTHCHECK CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8000/health')"]
ENTRYPOINT ["turnwise", "serve", "--host", "0.0.0.0", "--port", "8000", "--allow-host", "127.0.0.1", "--allow-host", "localhost"]
CMD ["turnwise_vit_nano.rotmnist"]
