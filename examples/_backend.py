"""What the examples share: where a program runs, as the flags say."""

import argparse
import contextlib

import mmserve as sgl


@contextlib.contextmanager
def open_backend(about, model, argv=None, backend=None):
    """The given `backend`, else the server at `--url`, else an engine in this process."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--url", help="a running `mmserve serve`; default: an engine here")
    parser.add_argument("--model", default=model, help="model of the engine (%(default)s)")
    flags = parser.parse_args(argv)
    if backend is not None:
        yield backend
    elif flags.url:
        with contextlib.closing(sgl.RuntimeEndpoint(flags.url)) as endpoint:
            yield endpoint
    else:
        with sgl.Engine(model=flags.model) as engine:
            yield engine
