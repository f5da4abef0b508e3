import html.parser
import json
import re
from xml.etree import ElementTree

import fake_runs
import pytest

from electra_jax.loading.samples import SampledWord
from electra_jax.report import page, task_scores
from electra_jax.report.samples import Samples
from electra_jax.runtime import run_log

VOID = {"meta", "input", "wbr", "br"}


class Document(html.parser.HTMLParser):
    """Elements that are closed as they were opened, and the text in them."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def made(*workdirs, samples=(), tasks=()):
    return page.make_page(run_log.read_run_logs(workdirs), samples, tasks)


def brief(folder, name, **numbers):
    """A run with one line and few numbers: drawing all charts of a page takes a second."""
    return fake_runs.write(folder / name, [{"step": 20, "mlm_loss": 5.0, **numbers}])


def cells(text):
    """The cells of each row, by its heading, as text."""
    rows = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', text)
    return {
        re.sub("<wbr>", "", what): [re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?>(.*?)</td>", rest)]
        for what, rest in rows
    }


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    first = fake_runs.write(folder / "one")
    lines = [fake_runs.line(step, disc_loss=None, disc_auc=None) for step in range(5, 31, 5)]
    return first, fake_runs.write(folder / "two", lines, objective__name="two_stage", optim__learning_rate=0.002)


@pytest.fixture(scope="module")
def page_of_two(two):
    return made(*two)


def test_it_is_whole_and_needs_nothing_but_itself(page_of_two):
    text = page_of_two
    document = Document(text)
    for forbidden in ("http://", "https://", "src=", "href=", "url(", "@import", "<script", "<link"):
        assert forbidden not in text
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in document.all("meta")
    images = re.findall(r"<svg.*?</svg>", text, re.DOTALL)
    assert len(images) == 3 * len(document.all("figure"))
    for image in images:
        root = ElementTree.fromstring(image)
        assert root.get("role") == "img"
        assert root[0].tag == "title"
    assert len(document.all("table")) == len(document.all("caption")) == 2
    assert all(th.get("scope") in ("row", "col", "rowgroup") for th in document.all("th"))
    ids = [attributes["id"] for _, attributes in document.elements if "id" in attributes]
    assert sorted(ids) == ["by-flops", "by-step", "by-time"]
    assert [label["for"] for label in document.all("label")] == ["by-step", "by-flops", "by-time"]


def test_numbers_are_those_that_were_logged(two, page_of_two):
    text = page_of_two
    rows = cells(text)
    last = [json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]) for run in two]
    heldout = [fake_runs.line(40), fake_runs.line(20)]  # of the second the evaluation before its end
    assert rows["objective"] == ["electra", "two_stage"]
    assert rows["steps"] == ["40 of 40", "30 of 40\u200275%"]
    assert rows["tokens"] == ["20.48k", "15.36k"]
    assert rows["FLOPs"] == ["600G", "450G"]
    assert rows["FLOPs as the paper counts them"] == ["720G", "540G"]
    assert [cell.split("\u2002")[0] for cell in rows["device hours"]] == ["0.025", "0.01875"]
    assert rows["at step"] == ["40", "20"]
    assert rows["MLM loss"] == [f"{line['heldout_mlm_loss']:.3f}\u2002unigram 5.940" for line in heldout]
    assert rows["Detection loss"] == [f"{line['heldout_disc_loss']:.3f}\u2002constant 0.372" for line in heldout]
    assert rows["AUC, own fakes"] == [f"{line['heldout_disc_auc']:.3f}\u2002chance 0.5" for line in heldout]
    assert rows["AUC, unigram fakes"] == ["0.710\u2002chance 0.5"] * 2
    assert rows["goodput"] == ["75.0%\u2002setup 10% · compile 5% · lost 5% · evaluation 4% · checkpoint 1%"] * 2
    assert "model FLOPs utilization" not in rows  # null in both
    for line, measured in zip(last, heldout, strict=True):
        for exact in (line["total_flops"], line["total_flops_paper"], measured["heldout_mlm_loss"]):
            assert f'title="{exact}"' in text
    assert rows["encoder, layers × width"] == ["bert, 4 × 128\u2002FFN 512 · 2 heads · embeddings 64"] * 2
    assert rows["generator, layers × width"] == ["bert, 2 × 64\u2002shared: embeddings"] * 2
    assert rows["input"] == ["text/*.txt"] * 2
    assert rows["vocabulary"] == ["600\u2002pieces"] * 2
    assert rows["devices"] == ["4 × cpu\u20022 processes"] * 2
    assert rows["versions"] == ["jax 0.10.2\u2002flax 0.12.8 · python 3.11.7"] * 2
    assert rows["commit"] == ["a1a1a1a1a1"] * 2
    assert "Not finished: two." in text


@pytest.mark.usefixtures("empty_charts")
def test_accuracy_stands_beside_that_of_saying_the_same_of_every_token(tmp_path):
    few, most = (
        fake_runs.write(
            tmp_path / name, [fake_runs.line(20, heldout_disc_accuracy=0.95, heldout_replaced_fraction=fakes)]
        )
        for name, fakes in (("few", 0.125), ("most", 0.9))
    )
    rows = cells(made(few, most))
    assert rows["Detection accuracy"] == ["0.950\u2002constant 0.875", "0.950\u2002constant 0.900"]


def test_charts_have_all_that_was_logged_for_every_axis(page_of_two):
    text = page_of_two
    captions = [re.sub("<.*?>", "", caption).strip() for caption in re.findall("<figcaption>(.*?)</figcaption>", text)]
    assert captions == [
        "MLM loss dashed: unigram entropy",
        "Detection loss dashed: constant predictor",
        "AUC, own fakes dashed: chance",
        "AUC, unigram fakes dashed: chance",
        "MLM loss",
        "Detection loss",
        "Total loss",
        "AUC, own fakes dashed: chance",
        "Replaced tokens",
        "Learning rate",
        "Gradient norm",
        "Speed",
        "Waiting for data",
        "Goodput",
    ]
    titles = re.findall('role="img"><title>(.*?)</title>', text)
    assert "MLM loss, against FLOPs. one: 6.058 to 4.771; two: 6.058 to 4.946." in titles
    assert any(title.startswith("MLM loss, against device minutes. ") for title in titles)
    assert "Detection loss, against steps. one: 0.3779 to 0.3135." in titles  # the other has nulls only


@pytest.mark.usefixtures("empty_charts")
def test_sources_of_a_mixture_have_rows_and_charts_of_their_own(tmp_path):
    numbers = {"mlm_loss": 5.0, "unigram_entropy": 6.0, "disc_loss": None, "disc_auc": 0.8}
    mixed = {f"heldout_{name}/{source}": value for source in ("en", "fy") for name, value in numbers.items()}
    text = made(fake_runs.write(tmp_path / "run", [fake_runs.line(20, **mixed)]))
    for source in ("en", "fy"):
        (body,) = re.findall(f"Last held-out evaluation of {source}(.*?)</tbody>", text, re.DOTALL)
        assert cells(body) == {
            "MLM loss": ["5.000\u2002unigram 6.000"],
            "AUC, own fakes": ["0.800\u2002chance 0.5"],
        }
        assert f"<figcaption>MLM loss, {source} <small>dashed: unigram entropy" in text
        assert f"Detection loss, {source}" not in text


def test_the_unigram_entropy_of_the_same_text_is_one_line(page_of_two, tmp_path):
    dashed = 'class="line (\\w+) dashed"'
    (figure, *_) = re.findall("<figure>.*?</figure>", page_of_two)
    assert re.findall(dashed, figure) == ["muted"] * 3
    numbers = {"heldout_mlm_loss": 5.0, "total_flops": 1e9, "device_seconds": 9.0}
    runs = [
        brief(tmp_path, name, **numbers, heldout_unigram_entropy=entropy)
        for name, entropy in (("one", 5.94), ("two", 5.94), ("three", 6.5))
    ]
    (figure, *_) = re.findall("<figure>.*?</figure>", made(*runs))
    assert re.findall(dashed, figure) == ["muted", "c2"] * 3


def test_names_that_mean_harm_are_text(tmp_path):
    hostile = """<script>alert("1")</script>&amp;'"""
    folder = "<img src=x onerror=alert(1)>"
    lines = [{"step": 5, "<b>evil_loss": 3.0, "heldout_<i>_auc": 0.5, "heldout_x_loss": 1.0}]
    workdirs = [
        fake_runs.write(tmp_path / folder, lines, data__input=hostile, objective__name=hostile),
        fake_runs.write(tmp_path / "other", lines, data__input="text"),
    ]
    words = [[SampledWord(hostile, 0.5, hostile), SampledWord("<b>", 0.1, None)]]
    path = tmp_path / "curves.jsonl"
    path.write_text(json.dumps(fake_runs.scored(hostile, 1, hostile, 0, 1.0, metric="<u>")))
    text = made(
        *workdirs,
        samples=[Samples(5, words, hostile), Samples(None, [], hostile)],
        tasks=task_scores.read_task_scores(tmp_path),
    )
    document = Document(text)
    assert not {"script", "img", "i"} & {tag for tag, _ in document.elements}
    assert hostile in document.texts
    assert any(attributes.get("title") == f"50%, was: {hostile}" for attributes in document.all("u"))
    assert [ElementTree.fromstring(image) for image in re.findall(r"<svg.*?</svg>", text, re.DOTALL)]


@pytest.mark.usefixtures("empty_charts")
def test_a_run_with_a_single_line_and_nothing_else_has_a_page(tmp_path):
    workdir = fake_runs.write(tmp_path / "run", [{"step": 7, "loss": None, "mlm_loss": 3.5}], environment=False)
    text = made(workdir)
    Document(text)
    rows = cells(text)
    assert rows["steps"] == ["7 of 40\u200218%"]
    assert not {"at step", "devices", "device hours", "tokens"} & set(rows)
    assert "MLM loss, against steps. run: 3.5 to 3.5." in text
    assert "no numbers yet" in text  # against FLOPs, which were not logged
    assert "Settings that differ" not in text
    assert "NaN" not in text
    assert "Total loss" not in text


@pytest.mark.usefixtures("empty_charts")
def test_settings_that_differ_are_listed_and_no_others(two, page_of_two, tmp_path):
    text = page_of_two
    differing = text[text.index("Settings that differ") : text.index("<h2>Curves")]
    assert cells(differing) == {"objective.name": ["electra", "two_stage"], "optim.learning_rate": ["0.001", "0.002"]}
    same = fake_runs.write(tmp_path / "same")
    assert "None: these runs have the same settings." in made(two[0], same)
    less = fake_runs.write(tmp_path / "less", model__tying=None, optim__learning_rate=1e-3, data__input="")
    differing = cells(made(two[0], less).split("Settings that differ")[1])
    assert differing == {"data.input": ["text/*.txt", "&#x27;&#x27;"], "model.tying": ["embeddings", "–"]}


def test_long_names_stand_in_charts_as_letters(tmp_path):
    text = made(*(brief(tmp_path, f"a-run-with-a-long-name-{i}") for i in range(2)))
    assert '<span class="key c1"><b>B</b> a-run-with-a-long-name-1</span>' in text
    assert set(re.findall('class="label">(.*?)</text>', text)) == {"A", "B"}


@pytest.mark.usefixtures("empty_charts")
def test_sentences_are_shaded_and_fakes_underlined(two):
    words = [[SampledWord("the", 0.01, None), SampledWord("dog", 0.625, "cat"), SampledWord("sat", 0.75, None)]]
    text = made(*two, samples=[Samples(40, words, ""), Samples(None, [], "It cannot tell.")])
    assert '<p><span title="1%">the</span> <u style="--p:0.62" title="62%, was: cat">dog</u> ' in text
    assert '<span style="--p:0.75" title="75%">sat</span></p>' in text
    assert "Over 50%: 1 of the 1 replaced words and 1 of the 2 others." in text
    assert "checkpoint of step 40" in text
    assert "It cannot tell." in text


def test_scores_of_tasks_are_medians_with_a_band(tmp_path):
    runs = [brief(tmp_path, name) for name in ("one", "two")]
    lines = [
        fake_runs.scored(run, step, task, seed, score)
        for run in ("one", "elsewhere")
        for step in (10, 40)
        for task in ("sentiment", "paraphrase")
        for seed, score in enumerate((0.5 + step / 100, 0.6 + step / 100, 0.52 + step / 100))
    ]
    (tmp_path / "curves.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    tasks = task_scores.read_task_scores(tmp_path, run_log.read_run_logs(runs))
    assert [(task.name, len(task.curves)) for task in tasks] == [("average", 2), ("sentiment", 2), ("paraphrase", 2)]
    assert tasks[1].curves[0].points[0] == (1e10, (pytest.approx(0.62), 0.6, 0.7), 3)
    text = made(*runs, tasks=tasks)
    Document(text)
    section = text[text.index("Task scores") :]
    assert cells(section)["sentiment, accuracy"] == ["0.92\u20020.9 to 1, 3 seeds"] * 2
    assert section.count('class="band c0"') == 3
    assert section.count('class="band c2"') == 3  # a run that the page is not about
    assert "sentiment, against FLOPs. one: 0.62 to 0.92; elsewhere: 0.62 to 0.92." in section
