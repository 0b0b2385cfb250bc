"""The kinds of clients that the founding document implies: Redis commands in a shell, Python, and Node with the package redis."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import skips
from tests.support.relays import ENV, Host, data_of

MakeHosts = Callable[..., list[Host]]

SHELL = """
set -eu
redis() { redis-cli --raw -s "$1" "$2" "$3" "$4"; }
ret=$(cat /proc/sys/kernel/random/uuid)
redis "$SOCKET" RPUSH msgbus.system.local \
    '{"ver": 1, "uid": "", "cmd": "hello", "exp": 60, "try": 4, "dat": "d2hvPw==", "src": 0, "dst": [1002],
      "ret": "'$ret'", "shm": "", "now": '$(date +%s)', "err": ""}' >/dev/null
redis "$SOCKET" BLPOP "$ret" 30 | tail -n 1
"""

NODE = """
const {createClient} = require('redis');
(async () => {
  const client = createClient({socket: {path: process.env.SOCKET}});
  await client.connect();
  const ret = require('crypto').randomUUID();
  await client.lPush('msgbus.system.local', JSON.stringify({ver: 1, uid: '', cmd: 'hello', exp: 60, try: 4,
    dat: Buffer.from('who?').toString('base64'), src: 0, dst: [1002], ret, shm: '', now: Math.floor(Date.now() / 1000), err: ''}));
  const answer = await client.blPop(ret, 30);
  console.log(answer.element);
  await client.quit();
})();
"""


def call(host: Host, other: Host, command: list[str], env: dict[str, str]) -> str:
    """Run a client of *host*, to whose request *other* responds; return its output."""
    environment = {**ENV, "SOCKET": str(host.server.path), **env}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as client:
        asked = other.receive("msgbus.hello")
        assert data_of(asked) == b"who?"
        other.reply(asked, b"me")
        out, errors = client.communicate(timeout=60)
    assert client.returncode == 0, errors
    return out


def test_a_shell(twins: MakeHosts) -> None:
    a, b = twins(1001, 1002)
    assert data_of(json.loads(call(a, b, ["sh", "-c", SHELL], {}))) == b"me"


def test_node_with_its_redis_package(twins: MakeHosts, tmp_path: Path) -> None:
    a, b = twins(1001, 1002)
    said = call(a, b, ["node", "-e", NODE], {"NODE_PATH": str(node_modules(tmp_path))})
    assert data_of(json.loads(said)) == b"me"


def node_modules(folder: Path) -> Path:
    """Return a folder with Node's package redis, from the machine or from npm."""
    skips.require(shutil.which("node") is not None, "needs Node: apt-get install nodejs npm", could_run=False)
    found = subprocess.run(["node", "-e", "require('redis')"], capture_output=True, check=False, timeout=60, cwd="/")
    if found.returncode == 0:
        return Path("/usr/share/nodejs")
    npm = shutil.which("npm")
    skips.require(npm is not None, "needs npm: apt-get install npm", could_run=False)
    command = [str(npm), "install", "--prefix", str(folder), "--no-audit", "--no-fund", "--silent", "redis@4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    if done.returncode:
        pytest.skip(f"npm cannot install redis: {done.stderr[-200:]}{skips.HONEST_MARK}")
    return folder / "node_modules"
