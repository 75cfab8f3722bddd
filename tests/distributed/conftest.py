"""The run that was never stopped, which others are compared with."""

import pytest

from tests.distributed.launch import finish, torchrun


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("two")
    out = finish(torchrun(tmp_path, tmp_path / "run"))
    return tmp_path / "run", out
