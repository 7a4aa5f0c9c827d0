"""The modules behind the charts, run in a browser: buckets, smoothing, axes, URL, draw queue."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.frontend.conftest import Visitor

pytestmark = [pytest.mark.browser, pytest.mark.django_db(transaction=True)]

Ask = Callable[[str], Any]
WAVE = "const wave = [...Array(1000).keys()].map((i) => b.single(i + 1, i === 500 ? 9 : Math.sin(i / 90)));"


@pytest.fixture
def ask(visit: Callable[..., Visitor]) -> Ask:
    page = visit().open("/help/")

    def answer(script: str) -> Any:  # whatever it returns
        names = {
            "b": "charts/buckets",
            "s": "charts/smooth",
            "a": "charts/axis",
            "v": "charts/view",
            "q": "charts/queue",
            "l": "lib/series",
            "p": "charts/pace",
            "m": "charts/marks",
            "k": "charts/likeness",
        }
        loaded = "".join(f"const {name} = await import('/static/js/{path}.js');" for name, path in names.items())
        return page.evaluate(f"async () => {{ {loaded} {WAVE} {script} }}")

    return answer


@pytest.mark.long
def test_buckets_keep_all_points_and_spikes(ask: Ask) -> None:
    places = ask("return b.merged(wave, 100)")
    assert len(places) <= 100
    assert sum(each["count"] for each in places) == 1_000
    assert max(each["high"] for each in places) == 9
    whole = ask("return wave.reduce((sum, { mean }) => sum + mean, 0)")
    assert sum(each["count"] * each["mean"] for each in places) == pytest.approx(whole)
    assert all(each["low"] <= each["mean"] <= each["high"] for each in places)
    assert [(each["from"], each["to"]) for each in places[:1] + places[-1:]] == [(1, places[0]["to"]), (1_000, 1_000)]
    assert ask("return b.merged(b.merged(wave, 400), 100).length") <= 100, "merged again as more comes"


@pytest.mark.long
def test_the_smoothed_line_halves_what_is_a_half_life_old(ask: Ask) -> None:
    jump = "[...Array(400).keys()].map((i) => b.single(i, i < 200 ? 0 : 1))"
    line = ask(f"return s.smoothed({jump}, 20)")
    assert line[0] == 0 and line[199] == 0
    assert line[219] == pytest.approx(0.5, abs=0.001) and line[239] == pytest.approx(0.75, abs=0.001)


@pytest.mark.long
def test_the_smoothed_line_is_the_same_in_fewer_places(ask: Ask) -> None:
    ends = ask("return [wave, b.merged(wave, 250)].map((places) => s.smoothed(places, 60).at(-1))")
    assert ends[1] == pytest.approx(ends[0], abs=0.01)
    assert ask("return s.smoothed([b.single(7, 3)], 60)") == [3], "it begins at the first value"


@pytest.mark.long
def test_an_axis_leads_there_and_back(ask: Ask) -> None:
    script = (
        "const axis = a.axisOf('time', [[1, 0], [10, 30], [11, 4000], [20, 4030]]);"
        "return [1, 4, 10, 10.5, 15, 20, 26].map((step) => [step, axis.stepAt(axis.at(step))]);"
    )
    for step, back in ask(script):
        assert back == pytest.approx(step)
    said = ask("return [0, 59, 90, 3600, 90000].map(a.spanText)")
    assert said == ["0", "59 s", "1 min 30 s", "1 h", "1 d 1 h"]


@pytest.mark.long
def test_tokens_add_up_over_stretches_of_steps(ask: Ask) -> None:
    sampled = "series: { 'train/tokens': [[10, 5], [20, 7], [21, 4]] }"
    banded = "bands: { 'train/tokens': [[10, 5, 5], [20, 7, 7], [21, 4, 4]] }, counts: { 'train/tokens': [10, 10, 1] }"
    assert ask(f"return p.tokensOf({{ {sampled}, {banded} }})") == [[0, 0], [10, 50], [20, 120], [21, 124]]


@pytest.mark.long
def test_url_keeps_chart_view_and_other_parameters(ask: Ask) -> None:
    kept = "?step=5&axis=tokens&smooth=20&scale=log&from=100&to=400"
    view = ask(f"return v.readView('{kept}')")
    assert view == {"axis": "tokens", "smooth": 20, "log": True, "from": 100, "to": 400}
    assert ask(f"return v.writeView(v.readView('{kept}'), '?step=5')") == kept
    assert ask(f"return v.writeView(v.readView(''), '{kept}')") == "?step=5", "what is as usual is left out"
    for nonsense in ("?axis=miles", "?smooth=-1", "?from=9&to=3", "?from=1e9", "?smooth=٣"):
        assert ask(f"return v.readView('{nonsense}')") == ask("return v.readView('')")


@pytest.mark.long
def test_store_takes_bands_then_points_and_rolls_back(ask: Ask) -> None:
    store = (
        "const store = new l.SeriesStore();"
        "store.replace({ series: { a: [[10, 1], [20, 2], [21, 3]] }, counts: { a: [10, 10, 1] },"
        " bands: { a: [[10, 0, 2], [20, 1, 3], [21, 3, 3]] } });"
    )
    ends = "return store.buckets('a').map(({ from, to, mean }) => [from, to, mean])"
    assert ask(f"{store} store.add({{ a: [[22, 5], [21, 4]] }}); {ends}")[2:] == [[21, 21, 4], [22, 22, 5]]
    assert ask(f"{store} store.add({{ a: [[15, 9]] }}); {ends}")[1] == [11, 20, 2], "already in the mean of its band"
    assert ask(f"{store} store.cutAfter(20); store.add({{ a: [[21, 7]] }}); {ends}")[-1] == [21, 21, 7]
    versions = ask(
        f"{store} store.add({{ b: [[1, 1]] }}); const before = store.version('a');"
        "store.add({ b: [[2, 1]] }); return [before, store.version('a')]"
    )
    assert versions[0] == versions[1], "news of another series is no change"


@pytest.mark.long
def test_marks_too_near_to_be_told_apart_are_drawn_once(ask: Ask) -> None:
    found = ask(
        "const marks = new m.Marks(); marks.add([...Array(1000).keys()].map((step) => "
        "({ type: 'checkpoint_saved', data: { step } })));"
        "marks.add([{ type: 'state_changed', data: { attempt: 2, resume_step: 500 } },"
        " { type: 'state_changed', data: { attempt: 1, resume_step: 0 } }]);"
        "return marks.shapes([0, 1000], a.BY_STEP, {}).map(({ x0, line }) => [x0, line.dash ?? 'tick'])"
    )
    ticks = [x for x, kind in found if kind == "tick"]
    assert 20 < len(ticks) <= 57 and [x for x, kind in found if kind == "dot"] == [500]


QUEUE = """
const frames = [], timers = [], drawn = [];
let now = 0, hidden = false;
window.requestAnimationFrame = (draw) => frames.push(draw);
window.setTimeout = (call, wait) => { timers.push([call, wait]); return timers.length; };
performance.now = () => now;
Object.defineProperty(document, 'hidden', { get: () => hidden, configurable: true });
const queue = new q.DrawQueue(), charts = ['a', 'b', 'c'].map((name) => ({ draw() { drawn.push(name); } }));
const frame = () => frames.shift()();
"""


@pytest.mark.long
def test_one_chart_is_drawn_in_a_frame(ask: Ask) -> None:
    told = ask(
        f"{QUEUE} for (const chart of charts) queue.ask(chart); const said = [];"
        "while (frames.length) { said.push(frames.length); frame(); said.push(drawn.join('')); } return said"
    )
    assert told == [1, "a", 1, "ab", 1, "abc"]


@pytest.mark.long
def test_a_chart_is_drawn_once_however_often_it_is_asked_for(ask: Ask) -> None:
    told = ask(
        f"{QUEUE} queue.ask(charts[0]); queue.ask(charts[0]); frame(); now = 10; queue.ask(charts[0]);"
        "const waits = [frames.length, timers.at(-1)[1]]; now = 1000; timers.at(-1)[0](); frame();"
        "now = 1001; queue.ask(charts[0], { soon: true }); frame(); return [waits, drawn]"
    )
    assert told == [[0, 990], ["a", "a", "a"]], "news wait for the rest of a second, user input does not"


@pytest.mark.long
def test_news_of_less_than_half_a_pixel_are_drawn_less_often(ask: Ask) -> None:
    checked_view = (
        "const plot = { clientWidth: 300, clientHeight: 100 }, same = { version: 0 };"
        "const at = (end, marks = same) => k.likenessOf({ palette: { text: '' }, axis: same, marks,"
        " view: { version: 0, range: () => [0, 3000] }, detail: { version: () => 0 },"
        " store: { version: () => end, buckets: () => [{ to: end }], extent: () => [0, end] } }, ['x'], plot);"
    )
    tiny = "[at(2004), at(2006), at(2001, { version: 1 })].map((now) => k.isTiny(at(2000), now, 0.1))"
    assert ask(f"{checked_view} return {tiny}") == [True, False, False], "four steps of a tenth of a pixel; six; a mark"
    assert ask(f"{checked_view} return [k.isTiny(null, at(1), 0.1), k.isAlike(at(1), at(1))]") == [False, True]
    waits = ask(
        f"{QUEUE} queue.ask(charts[0]); frame(); now = 10; queue.ask(charts[0], {{ isTiny: true }});"
        "const long = timers.at(-1)[1]; queue.ask(charts[0]); return [long, timers.at(-1)[1]]"
    )
    assert waits == [4_990, 990], "and what can be seen brings it forward"


@pytest.mark.long
def test_nothing_is_drawn_while_nobody_looks(ask: Ask) -> None:
    told = ask(
        f"{QUEUE} hidden = true; queue.ask(charts[0]); queue.ask(charts[1]); const before = frames.length;"
        "hidden = false; document.dispatchEvent(new Event('visibilitychange')); frame(); frame();"
        "return [before, drawn]"
    )
    assert told == [0, ["a", "b"]]
