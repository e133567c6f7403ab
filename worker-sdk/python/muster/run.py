"""python -m muster.run: what python -m torch.distributed.run does, by node-agent. This process becomes the agent, with all arguments
as they are; workers run under the same Python, unless PYTHON_EXEC names another."""
import os
import shutil
import sys
import sysconfig

_NAME = "node-agent"


def _agent():
    """The program that was installed with this module: as a wheel puts it (also for --user and --target), as `cmake --install` does,
    or the one in PATH."""
    here = os.path.dirname(os.path.abspath(__file__))
    folders = [sysconfig.get_path("scripts"), os.path.join(here, "..", "bin"), os.path.join(here, "..", "..", "..", "..", "bin")]
    if os.name + "_user" in sysconfig.get_scheme_names():
        folders.insert(1, sysconfig.get_path("scripts", os.name + "_user"))
    for folder in folders:
        path = os.path.join(folder, _NAME)
        if os.access(path, os.X_OK):
            return path
    return shutil.which(_NAME)


def main():
    agent = _agent()
    if agent is None:
        sys.exit(f"python -m muster.run: {_NAME} is neither installed with the module muster nor in PATH: install muster")
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execv(agent, ["torchrun", *sys.argv[1:]])
    except OSError as e:
        sys.exit(f"python -m muster.run: {agent} cannot be started: {e.strerror}")


if __name__ == "__main__":
    main()
