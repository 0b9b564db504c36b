"""What a page leads to is there: pages and their sections, files of the repository, settings and metrics."""

import re
from pathlib import Path
from urllib.parse import unquote

import pytest
from pydantic import BaseModel

from tests.docs.pages import DOCS, LINKED, PAGES, ROOT, anchors, code_in_text, links, named
from worker.settings import Settings
from worker.settings_sections import ExportSettings, KafkaSettings, LimitSettings

# What is made when it is needed, and so is in no checkout.
MADE = (".demo/", ".venv/")
SECTIONS: dict[str, type[BaseModel]] = {"kafka": KafkaSettings, "limits": LimitSettings}
OF_REPOSITORY = re.compile(r"(?:projections|worker|tests|fixtures|deploy|docs)/[\w./-]*")
SETTING = re.compile(r"(kafka|limits)\.(\w+)")
# `/readyz` speaks of roles with words that are not metrics.
METRIC = re.compile(r"[a-z]+(?:_[a-z]+)*_(?:total|messages|seconds|aggregates)|corrupt_partitions")
PAGE_SETTING = re.compile(r"web_\w+|state_dir|estimate_costs|prices_file|unbound|app_id")


@pytest.mark.parametrize("page", LINKED, ids=named)
def test_a_link_leads_somewhere(page: Path) -> None:
    wrong = []
    for link in links(page):
        if link.startswith(("https://", "mailto:")):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_relative_to(ROOT) or not target.exists():
            wrong.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target):
            wrong.append(f"{link}: no such section")
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_file_that_a_page_names_is_there(page: Path) -> None:
    named_files = {code for code in code_in_text(page) if OF_REPOSITORY.fullmatch(code)}
    assert sorted(code for code in named_files if not (ROOT / code).exists()) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_setting_that_a_page_names_is_one(page: Path) -> None:
    codes = set(code_in_text(page))
    sections = [found for code in codes if (found := SETTING.fullmatch(code))]
    assert [found[0] for found in sections if found[2] not in SECTIONS[found[1]].model_fields] == []
    plain = {code for code in codes if PAGE_SETTING.fullmatch(code)}
    assert sorted(plain - Settings.model_fields.keys() - ExportSettings.model_fields.keys()) == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_metric_that_a_page_names_is_in_the_table_of_metrics(page: Path) -> None:
    table = set(code_in_text(ROOT / "deploy" / "METRICS.md"))
    mentioned = {code for code in code_in_text(page) if METRIC.fullmatch(code)}
    assert sorted(name for name in mentioned if f"trace_projector_{name}" not in table) == []


def test_every_page_can_be_reached_from_the_readme() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in links(ROOT / "README.md")}
    assert sorted(named(page) for page in DOCS.glob("*.md") if page not in linked) == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 200


def test_anchors_are_those_that_git_hosts_make(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# What's `x_y` in it?\n\n## Again\n\n## Again\n\n```text\n# no heading\n```\n", encoding="utf-8")
    assert anchors(page) == {"whats-x_y-in-it", "again", "again-1"}
