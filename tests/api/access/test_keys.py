"""API keys: what is stored of them, and which ones are valid."""

import errno
import hashlib
import json
import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from api.access.keys import KeyRing, KeyScope, add_key, list_keys, remove_key
from api.errors import KeysError
from tests.support.command_line import command_line


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def names(file: Path) -> list[str]:
    return [key.name for key in list_keys(file)]


def test_a_key_is_256_random_bits_and_only_its_hash_is_stored(file: Path) -> None:
    key, other = (add_key(file, name, KeyScope.search) for name in ("alice", "bob"))
    assert key.startswith("lk_")
    assert len(key) == len(other) == 3 + 43
    assert key != other
    content = json.loads(file.read_text())
    assert key.removeprefix("lk_") not in file.read_text()
    salt = bytes.fromhex(content["salt"])
    assert len(salt) == 32
    assert content["keys"][0]["hash"] == hashlib.blake2b(key.encode(), key=salt, digest_size=32).hexdigest()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [path.name for path in file.parent.iterdir()] == ["keys.json"]


def test_the_ring_finds_only_its_keys_and_changes_apply_at_once(file: Path) -> None:
    search, admin = add_key(file, "reader", KeyScope.search), add_key(file, "boss", KeyScope.admin)
    ring = KeyRing(file)
    for key, name, scope in ((search, "reader", "search"), (admin, "boss", "admin")):
        found = ring.find(key.encode())
        assert found is not None
        assert (found.name, found.scope) == (name, scope)
    for wrong in (b"", b"lk_", search[:-1].encode(), search.lower().encode(), f"{search} ".encode(), b"\xff" * 46):
        assert ring.find(wrong) is None
    bob = add_key(file, "bob", KeyScope.admin)
    assert ring.find(bob.encode()) is not None
    remove_key(file, "reader")
    assert ring.find(search.encode()) is None
    assert ring.find(bob.encode()) is not None


@pytest.mark.parametrize(
    "owner", [None, pytest.param(1234, marks=pytest.mark.skipif(os.geteuid() != 0, reason="root"))]
)
def test_a_changed_file_can_be_read_by_the_same_users(file: Path, owner: int | None) -> None:
    """The server may run as another user than who adds and removes keys."""

    def access() -> tuple[int, int, int]:
        status = file.stat()
        return status.st_mode, status.st_uid, status.st_gid

    add_key(file, "alice", KeyScope.search)
    file.chmod(0o440)
    if owner is not None:
        os.chown(file, owner, owner)
    before = access()
    add_key(file, "bob", KeyScope.search)
    assert access() == before
    remove_key(file, "alice")
    assert access() == before


def test_equal_keys_of_two_files_do_not_look_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("api.access.keys.secrets.token_urlsafe", lambda size: "A" * 43)
    for name in ("a.json", "b.json"):
        add_key(tmp_path / name, "alice", KeyScope.search)
    assert list_keys(tmp_path / "a.json")[0].hash != list_keys(tmp_path / "b.json")[0].hash


def test_a_broken_file_leaves_the_keys_valid_and_a_removed_one_does_not(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    key = add_key(file, "alice", KeyScope.search).encode()
    ring, whole = KeyRing(file), file.read_text()
    file.write_text(whole[:-20])
    assert [ring.find(key) is not None for _ in range(3)] == [True] * 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert f"{file} is not a file of keys" in caplog.text
    assert "1 keys are valid" in caplog.text
    file.write_text(whole.replace('"keys"', '"keys": [], "old"'))
    assert ring.find(key) is not None
    file.unlink()
    assert [ring.find(key) for _ in range(2)] == [None, None]
    assert caplog.text.count("no key file") == 1
    file.write_text(whole)
    assert ring.find(key) is not None
    # A pipe in its place is not read, which would block.
    file.unlink()
    os.mkfifo(file)
    assert ring.find(key) is not None


def test_a_server_does_not_start_without_its_keys(file: Path) -> None:
    with pytest.raises(KeysError, match=rf"no key file {file}: add one with `likeness keys add {file} --name NAME`"):
        KeyRing(file)
    add_key(file, "alice", KeyScope.search)
    remove_key(file, "alice")
    with pytest.raises(KeysError, match="has no key in it"):
        KeyRing(file)
    for broken in ("", "[]", '{"keys": []}', '{"format": 2, "salt": "", "keys": []}'):
        file.write_text(broken)
        with pytest.raises(KeysError, match="is not a file of keys"):
            KeyRing(file)
    with pytest.raises(KeysError, match="cannot be read: it is not a regular file"):
        KeyRing(file.parent)


@pytest.mark.parametrize("name", ["", " ", "a b", "-a", "a\n", "ü", "x" * 65, "a/b", "[red]"])
def test_names_unfit_for_logs_are_refused(file: Path, name: str) -> None:
    with pytest.raises(KeysError, match="expected a name of up to 64 letters"):
        add_key(file, name, KeyScope.search)
    assert not file.exists()


@pytest.mark.parametrize(("failing", "number"), [("stat", errno.ESTALE), ("read_bytes", errno.EACCES)])
def test_a_temporarily_unreadable_file_leaves_the_keys_valid(
    file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, failing: str, number: int
) -> None:
    alice = add_key(file, "alice", KeyScope.search)
    ring = KeyRing(file)
    bob = add_key(file, "bob", KeyScope.search)

    def fails(path: Path) -> None:
        raise OSError(number, os.strerror(number), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, failing, fails)
        assert [ring.find(alice.encode()) is None for _ in range(3)] == [False] * 3
        assert ring.find(bob.encode()) is None
    assert caplog.text.count(f"the key file {file} cannot be read: {os.strerror(number)}; 1 keys are valid") == 1
    # Readable again, without another change of the file.
    assert ring.find(bob.encode()) is not None
    remove_key(file, "alice")
    assert ring.find(alice.encode()) is None


def test_a_name_is_added_once_and_removed_once(file: Path) -> None:
    add_key(file, "alice", KeyScope.search)
    with pytest.raises(KeysError, match="already has a key named 'alice'"):
        add_key(file, "alice", KeyScope.admin)
    with pytest.raises(KeysError, match="no key named 'bob', only: alice"):
        remove_key(file, "bob")
    with pytest.raises(KeysError, match="no folder for the key file"):
        add_key(file.parent / "none" / "keys.json", "alice", KeyScope.search)
    assert names(file) == ["alice"]


def test_concurrent_additions_lose_no_key(file: Path) -> None:
    users = [f"user{n}" for n in range(24)]
    with ThreadPoolExecutor(8) as pool:
        keys = list(pool.map(lambda name: add_key(file, name, KeyScope.search), users))
    assert sorted(names(file)) == sorted(users)
    ring = KeyRing(file)
    assert [found.name if (found := ring.find(key.encode())) else None for key in keys] == users


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)

    run = partial(command_line(monkeypatch, capsys), "keys")
    code, key, message = run("add", "--name", "alice")
    assert code == 0
    assert "alice's key, of scope search, in likeness-keys.json" in message
    assert KeyRing("likeness-keys.json").find(key.removesuffix("\n").encode()) is not None
    assert run("add", "likeness-keys.json", "--name", "boss", "--scope", "admin")[0] == 0
    facts = json.loads(run("list", "--format", "json")[1])
    assert [(fact["name"], fact["scope"]) for fact in facts] == [("alice", "search"), ("boss", "admin")]
    assert not any("hash" in fact for fact in facts)
    assert "alice" in run("list")[1]
    assert run("remove", "--name", "alice")[1] == "alice's key is removed from likeness-keys.json\n"
    monkeypatch.setenv("LIKENESS_KEYS_FILE", "other.json")
    code, out, message = run("list")
    assert (code, out) == (2, "")
    assert message.startswith("error: no key file other.json")
    monkeypatch.delenv("LIKENESS_KEYS_FILE")
    assert names(Path("likeness-keys.json")) == ["boss"]
