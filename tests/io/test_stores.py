"""Logs and plans in an object store: a real S3 server on this machine, which can be slow, break off, and lose keys."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from balancer import InputError
from balancer.cli.main import main
from balancer.io.store import RemotePath, as_path
from balancer.offline.load import checked_steps

moto_server = pytest.importorskip("moto.server")
fsspec = pytest.importorskip("fsspec")
pytest.importorskip("s3fs")

SHAPE = ["--ranks", "8", "--ranks-per-node", "4", "--batch-per-rank", "4", "--length", "tokens"]
SHAPE += [
    "--set",
    "plan.method=lpt",
    "--set",
    "plan.placement=any",
]  # where files lie is tested, not how well is planned
SECRET = "a-secret-that-nobody-must-read"
TABLE = pa.table({"tokens": np.random.default_rng(1).integers(1, 5000, 640)})


class Proxy(ThreadingHTTPServer):
    """Stands before the server: makes answers slow, and requests fail."""

    def __init__(self, target):
        super().__init__(("127.0.0.1", 0), _Forward)
        self.target, self.delay, self.refuse = target, 0.0, lambda method, path: False
        self.requests = []


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _forward(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        self.server.requests.append((self.command, self.path, self.headers.get("Range")))
        time.sleep(self.server.delay)
        if self.server.refuse(self.command, self.path):
            self._answer(403, [], b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>")
            return
        headers = {"Content-Type": "application/octet-stream"}  # or urllib would say that it is a form
        headers |= {name: value for name, value in self.headers.items() if name.lower() not in ("host", "expect")}
        request = Request(self.server.target + self.path, body or None, headers, method=self.command)
        try:
            with urlopen(request) as answer:
                self._answer(answer.status, answer.headers.items(), answer.read())
        except HTTPError as error:
            self._answer(error.code, error.headers.items(), error.read())

    def _answer(self, status, headers, body):
        self.send_response(status)
        headers = [(name, value) for name, value in headers if name.lower() not in ("transfer-encoding", "connection")]
        if not any(name.lower() == "content-length" for name, _ in headers):
            headers.append(("Content-Length", str(len(body))))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _forward  # noqa: N815

    def log_message(self, *_):
        pass


@contextmanager
def running(server):
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def server():
    moto = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    with running(Proxy(f"http://{host}:{port}")) as proxy:
        yield proxy
    moto.stop()


@pytest.fixture(scope="module")
def bucket(server, tmp_path_factory):
    """A bucket with a log of 640 rows in it, as one file and as two."""
    folder = tmp_path_factory.mktemp("bucket")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_address[1]}",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }.items():
            patch.setenv(name, value)
        fsspec.get_filesystem_class("s3").clear_instance_cache()
        files = fsspec.filesystem("s3")
        files.mkdir("bucket")
        for name, rows in (("logs/log", TABLE), ("many/a", TABLE.slice(0, 300)), ("many/b", TABLE.slice(300))):
            pq.write_table(rows, folder / "file.parquet", row_group_size=200)
            files.put_file(str(folder / "file.parquet"), f"bucket/{name}.parquet")
        yield files


@pytest.fixture
def store(bucket, server, monkeypatch, tmp_path):
    """A place in the bucket for a test of its own, and the log on disk."""
    monkeypatch.chdir(tmp_path)
    server.delay, server.refuse = 0.0, lambda method, path: False
    pq.write_table(TABLE, tmp_path / "log.parquet", row_group_size=200)
    server.requests.clear()
    return Store(bucket, f"s3://bucket/test-{time.monotonic_ns()}")


class Store:
    logs = "s3://bucket"

    def __init__(self, files, uri):
        self.files, self.uri = files, uri

    def content(self, folder):
        self.files.invalidate_cache()
        return {name.rpartition("/")[2]: self.files.cat_file(name) for name in self.files.find(f"{self.uri}/{folder}")}


def run(capsys, *words):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    told = capsys.readouterr()
    assert SECRET not in told.out + told.err
    return int(stopped.value.code or 0), told.out, told.err


def numbers(out):
    """What does not depend on the clock, on where files lie, and on who asks."""
    told = json.loads(out)
    of_run = ("steps", "samples", "fell_back_steps", "phases", "short_steps", "streams", "warnings")
    return {name: told[name] for name in of_run if name in told}


# -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log", ["logs/log.parquet", pytest.param("many", marks=pytest.mark.nightly), "many/*.parquet"])
def test_a_log_in_a_store_is_planned_as_on_disk(store, capsys, log):
    here = run(capsys, "plan", "log.parquet", *SHAPE, "--json", "--out", "here.parquet")
    there = run(capsys, "plan", f"{store.logs}/{log}", *SHAPE, "--json", "--out", "plan.parquet")
    assert (here[0], there[0]) == (0, 0), there[2]
    assert numbers(here[1]) == numbers(there[1])
    columns = ["step", "sample", "rank", "position"]
    assert pq.read_table("here.parquet", columns=columns) == pq.read_table("plan.parquet", columns=columns)
    sources = json.loads(pq.read_schema("plan.parquet").metadata[b"balancer"])["description"]["sources"]
    assert all(source["file"].startswith(f"{store.logs}/") for source in sources)
    assert all(source["etag"] and len(source["footer_sha256"]) == 64 and source["size"] > 0 for source in sources)
    assert SECRET.encode() not in Path("plan.parquet").read_bytes()
    assert numbers(run(capsys, "report", "plan.parquet", "--json")[1]) == numbers(there[1])


def test_text_is_read_through_a_buffer(store, capsys):
    store.files.pipe_file(f"{store.uri}/log.csv", b"tokens\n5\n7\n9\n4\n")
    shape = ["--ranks", "2", "--batch-per-rank", "1", "--length", "tokens", "--json"]
    code, out, _ = run(capsys, "plan", f"{store.uri}/log.csv", *shape)
    assert (code, numbers(out)["samples"]) == (0, 4)


@pytest.mark.parametrize("target", ["plans/p", "plans/p.parquet"])
def test_a_plan_is_written_to_a_store_and_checked_there(store, server, capsys, target):
    """And a folder is not written again where its parts are there."""
    out = f"{store.uri}/{target}" + "/" * ("." not in target)
    code, told, _ = run(capsys, "plan", "log.parquet", *SHAPE, "--json", "--out", out)
    assert code == 0
    assert numbers(run(capsys, "report", out, "--log", "log.parquet", "--json")[1]) == numbers(told)
    assert next(checked_steps(out, log="log.parquet")).num_samples == 32
    content = store.content("plans")
    assert sorted(name.partition("-")[0] for name in content) == (["p.parquet"] if "." in target else ["part"])
    if "." not in target:
        server.requests.clear()
        assert run(capsys, "plan", "log.parquet", *SHAPE, "--out", out)[0] == 0
        assert store.content("plans") == content
        assert [path for method, path, _ in server.requests if method == "PUT" and "part-" in path] == []


def test_only_what_is_needed_of_a_log_is_asked_for(store, server, capsys):
    wide = pa.table({"tokens": np.arange(1, 20001), "text": [f"{i:0500d}" for i in range(20000)]})
    pq.write_table(wide, "wide.parquet", compression="none", use_dictionary=False)
    store.files.put_file("wide.parquet", f"{store.uri}/wide.parquet")
    server.requests.clear()
    assert run(capsys, "plan", f"{store.uri}/wide.parquet", *SHAPE)[0] == 0
    ranges = [spec.removeprefix("bytes=").split("-") for method, _, spec in server.requests if method == "GET" and spec]
    assert 0 < sum(int(last) - int(first) + 1 for first, last in ranges) < 2_000_000 < 10_000_000
    assert all(spec for method, path, spec in server.requests if method == "GET" and path.endswith("wide.parquet"))


def test_a_write_that_fails_leaves_the_plan_that_was_there(store, server, capsys):
    out = f"{store.uri}/plan/"
    assert run(capsys, "plan", "log.parquet", *SHAPE, "--out", out)[0] == 0
    before = store.content("plan")
    server.refuse = lambda method, path: method in ("PUT", "POST") and "part-" in path
    code, _, told = run(capsys, "plan", "log.parquet", *SHAPE, "--set", "drop_last=true", "--overwrite", "--out", out)
    assert code == 2
    assert "cannot write" in told
    assert "Traceback" not in told
    server.refuse = lambda method, path: False
    assert store.content("plan") == before
    assert run(capsys, "report", out, "--log", "log.parquet")[0] == 0
    code, _, told = run(capsys, "plan", "log.parquet", *SHAPE, "--set", "drop_last=true", "--out", out)
    assert (code, "holds the plan of another request" in told) == (2, True)
    assert run(capsys, "plan", "log.parquet", *SHAPE, "--set", "drop_last=true", "--overwrite", "--out", out)[0] == 0
    assert len(store.content("plan")) == 1


def test_a_log_that_was_replaced_or_vanished_is_named(store, capsys):
    log = f"{store.uri}/log.parquet"
    store.files.put_file("log.parquet", log)
    assert run(capsys, "plan", log, *SHAPE, "--out", "plan.parquet")[0] == 0
    pq.write_table(pa.table({"tokens": TABLE["tokens"].to_numpy() + 1}), "log.parquet")
    store.files.put_file("log.parquet", log)
    code, _, told = run(capsys, "report", "plan.parquet")
    assert (code, "was not made from" in told) == (2, True)
    store.files.rm_file(log)
    Path("log.parquet").unlink()  # where it would be looked for next
    code, _, told = run(capsys, "report", "plan.parquet")
    assert (code, "log.parquet, is not there" in told) == (2, True)
    code, _, told = run(capsys, "plan", "s3://no-such-bucket/log.parquet", *SHAPE)
    assert (code, "s3://no-such-bucket/log.parquet: " in told) == (2, True)


def test_slow_answers_are_waited_for(store, server, capsys):
    server.delay = 0.1
    out = f"{store.uri}/plan/"
    assert run(capsys, "plan", f"{store.logs}/logs/log.parquet", *SHAPE, "--out", out)[0] == 0
    assert run(capsys, "report", out)[0] == 0


def test_a_store_that_refuses_is_told_in_a_line(store, server, capsys):
    server.refuse = lambda method, path: True
    code, _, told = run(capsys, "plan", f"{store.logs}/logs/log.parquet", *SHAPE)
    assert code == 2
    assert told.startswith(f"balancer: {store.logs}/logs/log.parquet: cannot read")
    assert told.count("\n") == 1


def test_processes_write_the_same_parts_to_a_store(store, capsys):
    log = f"{store.logs}/many"
    assert run(capsys, "plan", log, *SHAPE, "--out", f"{store.uri}/one/", "--jobs", "1")[0] == 0
    assert run(capsys, "plan", log, *SHAPE, "--out", f"{store.uri}/two/", "--jobs", "2")[0] == 0
    assert store.content("one") == store.content("two")


def test_a_uri_must_hold_no_password():
    with pytest.raises(InputError, match="must hold no user or password") as caught:
        as_path(f"ftp://me:{SECRET}@host/log.parquet")
    assert SECRET not in str(caught.value)


def test_names_of_uris():
    path = as_path("s3://bucket/logs/a.jsonl.gz")
    assert isinstance(path, RemotePath)
    assert (str(path), path.name, path.suffix, path.stem) == (
        "s3://bucket/logs/a.jsonl.gz", "a.jsonl.gz", ".gz", "a.jsonl",
    )  # fmt: skip


def test_a_kind_of_store_that_is_not_installed_is_named(capsys):
    code, _, told = run(capsys, "plan", "nosuch://bucket/log.parquet", *SHAPE)
    assert code == 2
    assert "nosuch://bucket/log.parquet" in told
