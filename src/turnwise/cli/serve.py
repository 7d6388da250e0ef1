"""turnwise serve: predictions over HTTP, and a page that uses them."""

import argparse
import shlex
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from turnwise.cli.terminal import OR_FILE, add_device, chosen_device, note
from turnwise.errors import InputError, require
from turnwise.signals import handle_interrupts

if TYPE_CHECKING:
    from turnwise.deploy.addresses import Address

LOOPBACK = "127.0.0.1"
MAX_WORKERS = 64
POLL = 0.5  # seconds between two looks at the workers
MIN_LIFE = 10.0  # seconds; a worker that ends sooner would end again
Worker = subprocess.Popen[str]


def arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("model", metavar="RUN", help=OR_FILE)
    add("--port", type=int, default=8765, help="0 for any (default: 8765)")
    add("--host", default=LOOPBACK,
        help=f"address to listen on (default: {LOOPBACK}, this machine)")  # fmt: skip
    add("--allow-host", action="append", default=[], metavar="NAME",
        help="a name by which clients may call the server; may be repeated")  # fmt: skip
    add("--workers", type=int, default=1,
        help="processes, each with its own copy of the model (default: 1)")  # fmt: skip
    add("--shared", action="store_true", help=argparse.SUPPRESS)  # of the port: one of the workers
    add_device(parser, "cpu")


def serve(args: argparse.Namespace) -> int:
    """Answer POST /predict with the predictions of a model, and open a page to drop an image on
    and rotate it. Only this machine can reach it, unless you set --host. Ctrl-C stops it."""
    from turnwise.deploy.addresses import find_address

    require(0 <= args.port < 65536, f"--port {args.port} must be from 0 to 65535.")
    require(
        1 <= args.workers <= MAX_WORKERS,
        f"--workers {args.workers} must be from 1 to {MAX_WORKERS}.",
    )
    address = find_address(args.host, args.allow_host)
    if args.workers > 1:
        return _serve_by_workers(args, address)
    return _serve_alone(args, address)


def _serve_alone(args: argparse.Namespace, address: "Address") -> int:
    from turnwise.deploy.classifier import ImageClassifier
    from turnwise.deploy.server import ImageServer
    from turnwise.inference.loading import class_names, fill_of, open_trained

    model = open_trained(args.model).to(chosen_device(args.device))
    classifier = ImageClassifier(str(args.model), model, class_names(model), fill_of(args.model))
    server = ImageServer(classifier, address, args.port, shared=args.shared)
    try:
        with handle_interrupts(server.shutdown):
            _announce(address, server.url)
            server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()
    print("stopped")
    return 0


def _announce(address: "Address", url: str) -> None:
    if not address.is_loopback:
        print(f"careful: other machines can reach {address.host}, too", flush=True)
    print(f"open {url} in a browser; Ctrl-C stops it", flush=True)


def _serve_by_workers(args: argparse.Namespace, address: "Address") -> int:
    """Run several processes that listen on one port; the system spreads connections over them."""
    from turnwise.deploy.server import bind

    with bind(address, args.port, shared=True) as reserved:  # it does not listen
        port = reserved.getsockname()[1]
        names = [word for name in args.allow_host for word in ("--allow-host", name)]
        command = [
            sys.executable, "-m", "turnwise", "serve", args.model, "--host", args.host,
            "--port", str(port), "--device", args.device, "--shared", *names,
        ]  # fmt: skip
        workers = [_start(command) for _ in range(args.workers)]
        try:
            for worker in workers:
                _require_started(worker, command)
            _announce(address, f"{address.url(port)}/")
            _keep_running(workers, command)
        except KeyboardInterrupt:
            pass
        finally:
            for worker in workers:
                worker.terminate()
            for worker in workers:
                worker.communicate()
    print("stopped")
    return 0


def _start(command: list[str]) -> Worker:
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def _keep_running(workers: list[Worker], command: list[str]) -> None:
    """Start workers again that have ended; give up on one that ends soon after its start."""
    started = [time.monotonic()] * len(workers)
    while True:
        time.sleep(POLL)
        for i, worker in enumerate(workers):
            if worker.poll() is None:
                continue
            end = f"worker {i + 1} ended with exit status {worker.returncode}"
            if time.monotonic() - started[i] < MIN_LIFE:
                raise InputError(f"{end} within {MIN_LIFE:g} seconds of its start; stopped.")
            note(f"turnwise serve: {end}; starting it again")
            worker.communicate()
            workers[i], started[i] = _start(command), time.monotonic()
            _require_started(workers[i], command)


def _require_started(worker: Worker, command: list[str]) -> None:
    """Wait until a worker listens; its own message on stderr says why if it does not."""
    assert worker.stdout is not None
    while line := worker.stdout.readline():
        if line.startswith("open "):
            return
    raise InputError(f"a worker did not start: {shlex.join(command)}")
