"""turnwise serve: a page on this machine for a person's own pictures."""

import argparse

from turnwise.errors import InputError, require
from turnwise.signals import interruptions_to

LOOPBACK = "127.0.0.1"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", help="a run, a model folder or shipped weights")
    parser.add_argument("--port", type=int, default=8765, help="0 takes any (default: 8765)")
    parser.add_argument(
        "--host", default=LOOPBACK, help=f"address to listen on (default: {LOOPBACK}, this machine)"
    )
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda (default: cpu)")


def serve(args: argparse.Namespace) -> int:
    """Open a page on this machine where you drop a picture and turn it while the model answers.
    Only this machine can reach it, unless --host says otherwise; Ctrl-C ends it."""
    from turnwise.cli.devices import chosen_device
    from turnwise.deploy.server import Answerer, ImageServer
    from turnwise.models import load
    from turnwise.models.registry import config_of

    require(0 <= args.port < 65536, f"--port {args.port} must be from 0 to 65535.")
    require(
        args.host not in ("0.0.0.0", "::", ""),
        f"--host {args.host!r} is every address at once; name the one that others are to use.",
    )
    model = load(args.run).to(chosen_device(args.device))
    count = config_of(model).options["num_classes"]
    classes = tuple(getattr(model, "classes", ())) or tuple(map(str, range(count)))
    try:
        server = ImageServer(Answerer(str(args.run), model, classes), args.host, args.port)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InputError(
            f"cannot listen on {args.host}:{args.port} ({reason}); try another --port."
        ) from error
    if args.host != LOOPBACK:
        print(f"careful: others can reach {args.host}, too", flush=True)
    address = f"http://{args.host}:{server.port}/"
    try:
        with interruptions_to(server.interrupt):
            print(f"open {address} in a browser; Ctrl-C ends it", flush=True)
            server.serve_forever()
    except KeyboardInterrupt:
        print("ended")
    finally:
        server.server_close()
    return 0
