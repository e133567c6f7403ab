"""Fixtures of the black-box tests. Each test has a folder of its own, which stays when it fails."""
import pytest

import mulib


@pytest.fixture
def start_server(tmp_path):
    """Starts servers; each is ended and checked after the test."""
    servers = []

    def start(*options, **kwargs):
        s = mulib.Server(tmp_path, *options, name=f"server{len(servers)}", **kwargs)
        servers.append(s)
        return s

    yield start
    for s in servers:
        s.check_end()


@pytest.fixture
def server(start_server):
    return start_server()


@pytest.fixture
def job(tmp_path):
    """Starts agents; each is ended and checked after the test."""
    import agentlib
    j = agentlib.Job(tmp_path)
    yield j
    j.check_end()
