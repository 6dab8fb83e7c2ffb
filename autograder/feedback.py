"""One HTML page per learner: what was right, what was not, why, and what to do next.

Self-contained, no script, readable on paper. Every text that comes from a learner is escaped; no
page holds an input, an expected value or a line of a reference. The same result gives the same
bytes.
"""

import html
import re
from datetime import timedelta

from autograder.checks import LABELS
from autograder.discover import printable
from autograder.judge import percent
from autograder.questions import find
from autograder.questions.base import LECTURES, STATEMENT

BADGES = {
    "right": ("✓", "right"),
    "half": ("◐", "partly right"),
    "wrong": ("✗", "not yet right"),
    "unanswered": ("–", "not answered"),
    "not run": ("!", "could not be run"),
}

NOTHING = """<section class="card">None of the {} questions could be graded, because there was
nothing to run. If this is a mistake, tell your instructor and hand in the notebook again: check
before that it opens in JupyterLab, and that <code>python -m autograder check NOTEBOOK</code> finds
your answers.</section>"""

STYLE = """
:root { color-scheme: light; }
* { box-sizing: border-box; }
body { margin: 0; background: #f6f6f3; color: #22262b;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 860px; margin: 0 auto; padding: 40px 24px 64px; }
header { display: flex; justify-content: space-between; align-items: flex-end; gap: 24px;
  margin-bottom: 28px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; overflow-wrap: break-word; }
.who { color: #5b6470; overflow-wrap: anywhere; }
.total { text-align: right; white-space: nowrap; font-size: 34px; font-weight: 650;
  line-height: 1.1; }
.total small { display: block; font-size: 14px; font-weight: 400; color: #5b6470; }
.card { background: #fff; border: 1px solid #dfe1e4; border-radius: 10px; padding: 18px 22px;
  margin: 14px 0; break-inside: avoid; }
.notes { border-left: 5px solid #e69f00; }
.notes h2, .todo h2 { font-size: 16px; margin: 0 0 6px; }
.notes ul { margin: 0; padding-left: 20px; overflow-wrap: anywhere; }
.head { display: grid; grid-template-columns: 34px 1fr auto; gap: 12px; align-items: center; }
.badge { width: 34px; height: 34px; border-radius: 50%; display: grid; place-items: center;
  font-weight: 700; color: #fff; background: #b3400a; }
.right .badge { background: #00714f; }
.half .badge { background: #8a6100; }
.unanswered .badge, .written .badge { background: #6b7280; }
.title { font-weight: 650; }
.title span { display: block; font-weight: 400; color: #5b6470; font-size: 14px; }
code { font: 14px/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
.points { white-space: nowrap; font-variant-numeric: tabular-nums; }
.points b { font-size: 19px; }
dl { display: grid; grid-template-columns: 150px 1fr; gap: 8px 18px; margin: 14px 0 2px 46px; }
dt { color: #5b6470; }
dd { margin: 0; overflow-wrap: anywhere; }
footer { color: #5b6470; font-size: 14px; margin-top: 28px; }
@media (max-width: 560px) { header { flex-wrap: wrap; }
  dl { grid-template-columns: 1fr; margin-left: 0; gap: 2px; }
  dd { margin-bottom: 8px; } }
@media print { body { background: #fff; } main { padding: 0; } }
"""


def page(release, result, score) -> str:
    """The feedback page of one result; score : from the gradebook, so points by hand count."""
    if not result.empty:
        remarks = [score.comments.get(release.cells[q.answer].grade_id) for q in release.questions]
        points = [score.by_cell[mark.grade_id] for mark in result.marks]
        cards = "\n".join(map(_card, result.marks, points, remarks))
        cards += _written(release, score)
    else:
        cards = NOTHING.format(len(result.marks))
    title = homework_title(release.name)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_h(title)}: {_h(result.student)}</title>
<style>{STYLE}</style>
</head>
<body><main>
<header>
<div><h1>{_h(title)}</h1><div class="who">{_h(result.student)}</div></div>
<div class="total">{score.total:g} / {score.maximum:g}<small>{_arithmetic(score)}</small></div>
</header>
{_notes(result, score)}
{cards}
<footer>Your functions were called on inputs that you have not seen, with the checks of
<code>check(...)</code> in the notebook. Half the points are given where every value is right and a
later check is not, such as the gradient, an input changed in place, or extreme numbers. Lectures
are named by their file in the folder of the course.</footer>
</main></body>
</html>
"""


def _arithmetic(score) -> str:
    if not score.penalty:
        return "points"
    return f"points: {score.total + score.penalty:g} less {score.penalty:g} for lateness"


def duration(late: timedelta) -> str:
    """How late, in the words of a page or a table: "3 d 4 h", "4 h 10 min", "10 min"."""
    minutes = max(1, round(late / timedelta(minutes=1)))
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def homework_title(name: str) -> str:
    """hw1_policy_gradient -> Homework 1: policy gradient."""
    match = re.fullmatch(r"hw(\d+)_(\w+)", name)
    return f"Homework {match[1]}: {_title(match[2])}" if match else name


def _title(name: str) -> str:
    """values_and_gae -> values and GAE."""
    return " ".join(w.upper() if w in ("gae", "kl", "ppo") else w for w in name.split("_"))


def _notes(result, score) -> str:
    texts = list(result.notes)
    if result.replaces:
        texts.append(result.replaces)
    if score.late:
        cost = f"{score.penalty:g} points were taken off" if score.penalty else "this costs nothing"
        clock = "" if result.stamped else " by the file's own time"
        texts.append(f"It was handed in {duration(score.late)} after the deadline{clock}; {cost}.")
    if score.pending:
        several = "answer is" if score.pending == 1 else "answers are"
        texts.append(f"{score.pending} {several} still to be graded by hand.")
    notes = [f"<li>{_h(text)}</li>" for text in texts]
    if not notes:
        return ""
    return (
        f'<section class="card notes"><h2>About your file</h2><ul>{"".join(notes)}</ul></section>'
    )


def _written(release, score) -> str:
    """A card for each written answer that has points or a grader's comment."""
    worth = {m.grade_id: m.points for m in release.manual}
    cards = []
    for label in (release.cells[index].grade_id for index in release.written):
        comment = score.comments.get(label)
        if not comment and not worth.get(label):
            continue
        points = ""
        if worth.get(label):
            open_ = label in score.waiting and not score.by_cell[label]
            earned = "not graded yet" if open_ else f"<b>{score.by_cell[label]:g}</b>"
            points = f"{earned} / {worth[label]:g}"
        cards.append(f"""<section class="card written">
<div class="head"><div class="badge" role="img" aria-label="written answer">✎</div>
<div class="title">{_h(label.replace("_", " ").capitalize())}</div>
<div class="points">{points}</div></div>
{_list([("Your instructor", _h(comment))] if comment else [])}
</section>""")
    return "\n".join(cards)


def _card(mark, points: float, remark: str | None) -> str:
    """points : from the gradebook; remark : what a grader wrote about this answer."""
    question, state = find(mark.id), kind(mark)
    symbol, words = BADGES[state]
    call = f"{question.function_name}{question.signature}"
    return f"""<section class="card {state.replace(" ", "-")}">
<div class="head">
<div class="badge" role="img" aria-label="{words}">{symbol}</div>
<div class="title">{_h(question.title)}<span><code>{_h(call)}</code></span></div>
<div class="points"><b>{points:g}</b> / {mark.max_points:g}{" bonus" * question.bonus}</div>
</div>
{_list(_explanation(mark) + ([("Your instructor", _h(remark))] if remark else []))}
</section>"""


def kind(mark) -> str:
    """A mark's status, "half" for an answer that is partly right; a key of BADGES."""
    return "half" if mark.status == "wrong" and mark.points else mark.status


def _explanation(mark) -> list[tuple[str, str]]:
    if mark.status == "right":
        return []
    details = mark.details
    rows = []
    if (failed := details["property"]) and mark.status == "wrong":
        where = f", on the input “{_h(details['case'])}”" if details["case"] else ""
        rows.append(("First failing check", f"{_h(LABELS.get(failed, failed))}{where}"))
    difference = details["difference"]
    if isinstance(difference, float) and 0 < difference < float("inf"):
        rows.append(("Largest difference", percent(difference)))
    rows.append(("Likely cause" if mark.status == "wrong" else "What happened", _text(mark.cause)))
    if details["hint"]:
        rows.append(("Hint", _text(details["hint"])))
    rows.append(("Read again", lecture_reference(details["lecture"])))
    return rows


def _list(rows: list[tuple[str, str]]) -> str:
    """Terms and texts (HTML) side by side."""
    if not rows:
        return ""
    return "<dl>" + "".join(f"<dt>{term}</dt><dd>{text}</dd>" for term, text in rows) + "</dl>"


def lecture_reference(lecture: str, *, file: bool = True) -> str:
    """ "02, [BL-8]" as a title, a tag and a file: the page leaves the folder, so no link."""
    number, _, tag = (part.strip(" []") for part in lecture.partition(","))
    tag = f", equation {tag}" if tag else ""
    if number == STATEMENT:
        return _h(f"The statement of this question{tag}")
    name = LECTURES.get(number)
    if name is None:
        return _h(lecture)
    title = _title(name.partition("_")[2])
    place = f" (<code>lectures/{_h(name)}.ipynb</code>)" if file else ""
    return _h(f"Lecture {number}, {title}{tag}") + place


def _text(text) -> str:
    """Escaped, with `code` set as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", _h(text))


def _h(text) -> str:
    return html.escape(printable(text), quote=True)
