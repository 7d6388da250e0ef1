"""Measure the HTTP service: throughput and latency with many clients, beside the bare model.

    python benchmarks/service_load.py --clients 200 --requests 2000 --hostile 20

The server runs in another process and listens on the loopback interface only.  Every client sends
its share of the requests one after the other over one connection.  With --hostile some clients
never finish a request.  The bare model predicts the same number of images in its best batch size.
"""

import argparse
import asyncio
import io
import json
import re
import shlex
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import aiohttp
import numpy as np
import torch
from PIL import Image
from records import append_record

from turnwise.inference.loading import image_shape, open_trained
from turnwise.inference.predictor import Predictor

HERE = Path(__file__).parent
BATCHES = (16, 64, 256)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="turnwise_vit_nano.rotmnist")
    parser.add_argument("--clients", type=int, default=200)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--hostile", type=int, default=0, help="clients that never finish")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="append to service_load.jsonl")
    return parser.parse_args(words)


def bare_throughput(name: str, count: int) -> tuple[float, int]:
    """Return images per second of the model alone, and the batch size at which it is best."""
    model = open_trained(name)
    channels, size = image_shape(model)
    images = torch.randint(0, 256, (min(count, 512), channels, size, size), dtype=torch.uint8)
    found = {}
    for batch in BATCHES:
        predictor = Predictor(model, batch_size=batch)
        predictor.probabilities(images[:batch])
        start = time.perf_counter()
        predictor.probabilities(images)
        found[len(images) / (time.perf_counter() - start)] = batch
    return max(found), found[max(found)]


def resident_megabytes(process: int) -> float:
    """Return the memory of a process, NaN where /proc is missing."""
    status = Path(f"/proc/{process}/status")
    text = status.read_text() if status.is_file() else ""
    match = re.search(r"VmRSS:\s+(\d+) kB", text)
    return int(match[1]) / 1024 if match else float("nan")


def sample_image(name: str) -> bytes:
    channels, size = image_shape(open_trained(name))
    pixels = np.random.default_rng(0).integers(0, 256, (size, size, channels), dtype=np.uint8)
    encoded = io.BytesIO()
    Image.fromarray(pixels[..., 0] if channels == 1 else pixels).save(encoded, "PNG")
    return encoded.getvalue()


async def send_all(url: str, image: bytes, clients: int, requests: int) -> list[tuple[int, float]]:
    """Return the status and the seconds of every request; status 0 is no reply at all."""
    found: list[tuple[int, float]] = []
    connector = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(total=120)

    async def client(share: int) -> None:
        for _ in range(share):
            start, status = time.perf_counter(), 0
            with suppress(aiohttp.ClientError, TimeoutError):
                async with session.post(f"{url}predict", data=image) as reply:
                    await reply.read()
                    status = reply.status
            found.append((status, time.perf_counter() - start))

    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        shares = [requests // clients + (i < requests % clients) for i in range(clients)]
        await asyncio.gather(*map(client, shares))
    return found


async def drip(url: str) -> None:
    """Send half a request, and then a byte a second, for ever."""
    host, port = re.search(r"//([^:/]+):(\d+)", url).groups()
    head = f"POST /predict HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Length: 9000000\r\n\r\n"
    while True:
        with suppress(OSError):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(head.encode() + bytes(500_000))
            for _ in range(30):
                await asyncio.sleep(1)
                writer.write(b"x")
                await writer.drain()


async def load(url: str, args: argparse.Namespace) -> tuple[list[tuple[int, float]], float]:
    hostile = [asyncio.create_task(drip(url)) for _ in range(args.hostile)]
    await asyncio.sleep(0.5)
    start = time.perf_counter()
    found = await send_all(url, sample_image(args.model), args.clients, args.requests)
    seconds = time.perf_counter() - start
    for task in hostile:
        task.cancel()
    return found, seconds


def main() -> None:
    args = arguments()
    bare, batch = bare_throughput(args.model, args.requests)
    command = [sys.executable, "-m", "turnwise", "serve", args.model, "--port", "0",
               "--workers", str(args.workers)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        url = re.search(r"http://\S+/", server.stdout.readline())[0]
        asyncio.run(send_all(url, sample_image(args.model), 1, 20))
        before = resident_megabytes(server.pid)
        found, seconds = asyncio.run(load(url, args))
        after = resident_megabytes(server.pid)
        server.terminate()
    latencies = sorted(latency for _, latency in found)
    statuses = [status for status, _ in found]
    figures = {
        "model": args.model,
        "clients": args.clients,
        "requests": len(found),
        "hostile": args.hostile,
        "workers": args.workers,
        "statuses": {str(s): statuses.count(s) for s in sorted(set(statuses))},
        "requests_per_second": statuses.count(200) / seconds,
        "latency_p50": latencies[len(latencies) // 2],
        "latency_p99": latencies[int(0.99 * (len(latencies) - 1))],
        "bare_images_per_second": bare,
        "bare_batch_size": batch,
        "share_of_bare": statuses.count(200) / seconds / bare,
        "megabytes_before": before,
        "megabytes_after": after,
    }
    print(json.dumps(figures, indent=2))
    if args.record:
        append_record(HERE / "service_load.jsonl", shlex.join(["python", *sys.argv]), figures)


if __name__ == "__main__":
    main()
