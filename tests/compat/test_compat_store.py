"""The store, asked by real clients of torch, at both places where it is served."""
import pytest
from conftest import names_of, run_cases

NEW, OLD = names_of("store_cases.py"), names_of("legacy_cases.py")


@pytest.fixture(scope="module")
def server_says(torch2, server):
    return run_cases(torch2, "store_cases.py", server)


@pytest.fixture(scope="module")
def agent_says(torch2, worker_store):
    return run_cases(torch2, "store_cases.py", worker_store)


@pytest.fixture(scope="module")
def server_says_old(torch1, server):
    return run_cases(torch1, "legacy_cases.py", server)


@pytest.fixture(scope="module")
def agent_says_old(torch1, worker_store):
    return run_cases(torch1, "legacy_cases.py", worker_store)


@pytest.mark.parametrize("name", NEW)
def test_torch2_client_of_rdzv_server(server_says, name):
    assert server_says[name]["ok"], server_says[name]["text"]


@pytest.mark.parametrize("name", NEW)
def test_torch2_client_of_a_worker_store(agent_says, name):
    assert agent_says[name]["ok"], agent_says[name]["text"]


@pytest.mark.parametrize("name", OLD)
def test_torch1_client_of_rdzv_server(server_says_old, name):
    assert server_says_old[name]["ok"], server_says_old[name]["text"]


@pytest.mark.parametrize("name", OLD)
def test_torch1_client_of_a_worker_store(agent_says_old, name):
    assert agent_says_old[name]["ok"], agent_says_old[name]["text"]
