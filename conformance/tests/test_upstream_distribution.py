"""Source distributions: fetched once, kept as a whole or not at all, and told of if not there."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from types import SimpleNamespace

import pytest

from nnx_conformance.cli import main
from nnx_conformance.upstream import distribution
from nnx_conformance.usage import UsageError

FILES = {
    "flax-1.2.3/PKG-INFO": "Metadata-Version: 2.4\nName: flax\nVersion: 1.2.3\n",
    "flax-1.2.3/pyproject.toml": '[tool.pytest.ini_options]\nfilterwarnings = ["error"]\n',
    "flax-1.2.3/tests/nnx/a_test.py": "def test_it(): pass\n",
    "flax-1.2.3/tests/linen/b_test.py": "def test_it(): pass\n",
    "flax-1.2.3/docs_nnx/guide.md": "# A guide\n",
    "flax-1.2.3/flax/__init__.py": "",
}

UNKNOWN = """
ERROR: Could not find a version that satisfies the requirement flax==1.2.4 (from versions: 1.2.2, 1.2.3)
ERROR: No matching distribution found for flax==1.2.4
"""  # noqa: E501
NOWHERE = """
WARNING: Retrying after connection broken by 'NewConnectionError'
ERROR: Could not find a version that satisfies the requirement flax==1.2.3 (from versions: none)
ERROR: No matching distribution found for flax==1.2.3
"""


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """Plays pip: it has the release 1.2.3, unless told otherwise."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    playing = SimpleNamespace(calls=[], says="", late=False)

    def run(command, **options):
        playing.calls.append(command)
        if playing.late:
            raise subprocess.TimeoutExpired(command, 1)
        if not playing.says:
            archive(command[command.index("--dest") + 1])
        return subprocess.CompletedProcess(command, bool(playing.says), "", playing.says)

    monkeypatch.setattr(distribution, "downloader", lambda: ("pip",))
    monkeypatch.setattr(distribution.subprocess, "run", run)
    return playing


def archive(folder):
    with tarfile.open(f"{folder}/flax-1.2.3.tar.gz", "w:gz") as opened:
        for name, text in FILES.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            opened.addfile(entry, io.BytesIO(text.encode()))


def test_it_is_fetched_once_and_only_what_matters_is_kept(pip, tmp_path):
    found = distribution.fetch("1.2.3")
    assert distribution.fetch("1.2.3") == found
    assert len(pip.calls) == 1
    assert (found.release, found.filters()) == ("1.2.3", ["error"])
    assert sorted(path.name for path in found.root.rglob("*") if path.is_file()) == [
        *("PKG-INFO", "a_test.py", "guide.md", "pyproject.toml")
    ]
    assert [path.name for path in found.root.parent.iterdir()] == ["1.2.3"]


def test_nothing_is_kept_of_what_cannot_be_fetched(pip, tmp_path):
    pip.says = NOWHERE
    with pytest.raises(distribution.UnreachableError, match="No matching distribution"):
        distribution.fetch("1.2.3")
    assert list((tmp_path / "cache/nnx-conformance/flax").iterdir()) == []
    pip.says = ""
    assert distribution.fetch("1.2.3").root.is_dir()


def test_an_unknown_release_is_wrong_use(pip):
    pip.says = UNKNOWN
    with pytest.raises(UsageError, match=r"no release '1.2.4' .* did you mean 1.2.3 or 1.2.2"):
        distribution.fetch("1.2.4")


def test_no_answer_is_unreachable(pip):
    pip.late = True
    with pytest.raises(distribution.UnreachableError, match="no answer"):
        distribution.fetch("1.2.3")


def test_uv_stands_in_for_pip(monkeypatch):
    monkeypatch.setattr(distribution.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(distribution.shutil, "which", lambda name: "/bin/uv")
    command = distribution.downloader()
    assert command == ("/bin/uv", "tool", "run", "--python", sys.executable, "pip")


def test_without_either_it_says_the_way_out(monkeypatch):
    monkeypatch.setattr(distribution.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(distribution.shutil, "which", lambda name: None)
    with pytest.raises(UsageError, match="--source DIR"):
        distribution.downloader()


def test_offline_is_wrong_use_unless_it_is_to_be_skipped(pip, capsys):
    pip.says = NOWHERE
    argv = ["upstream", "reference", "--release", "1.2.3"]
    assert main(argv) == 2
    assert "the package index cannot be reached" in capsys.readouterr().err
    assert main([*argv, "--skip-offline"]) == 0
    assert capsys.readouterr().out.startswith("skipped: the package index cannot be reached")


def test_an_unknown_release_is_not_skipped(pip):
    pip.says = UNKNOWN
    assert main(["upstream", "reference", "--release", "1.2.4", "--skip-offline"]) == 2


def test_a_folder_says_of_which_release_it_is(tmp_path):
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert distribution.unpacked(tmp_path / "flax-1.2.3").release == "1.2.3"
    assert distribution.unpacked(tmp_path / "flax-1.2.3", "2.0").release == "2.0"


def test_a_digest_changes_with_the_files(tmp_path):
    (tmp_path / "a").write_text("1")
    source = distribution.Distribution(tmp_path, "1.2.3")
    before = source.digest(["a"])
    (tmp_path / "a").write_text("2")
    assert source.digest(["a"]) != before
