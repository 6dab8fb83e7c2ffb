"""A class on one HTML page: how it went, what to explain again, who needs attention.

Self-contained: pictures are inline SVG, there is no script and no link. Colours are doubled by
patterns, symbols and numbers, so it reads in grey too. All text of learners is escaped. Learners'
names stand in the last section only, which `anonymous` leaves out. Counts come from the
judge's verdicts; points come from the gradebook, so those given by hand count.
"""

import math
from collections import Counter
from statistics import mean, median

from autograder.feedback import (
    BADGES,
    STYLE,
    _h,
    _text,
    duration,
    homework_title,
    kind,
    lecture_reference,
)
from autograder.gradebook import is_bonus
from autograder.questions import find
from autograder.sandbox import NOT_ISOLATED

SHOWN = 3  # mistakes per question
FILLS = {  # status -> colour, pattern on it, colour of its number
    "right": ("#00664a", "", "#ffffff"),
    "half": ("#8fcdf2", "dots", "#16202a"),
    "wrong": ("#f2b134", "stripes", "#16202a"),
    "not run": ("#5b6470", "cross", "#ffffff"),
    "unanswered": ("#eceef0", "", "#16202a"),
}
MORE_STYLE = """
.wide { max-width: 980px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px; }
.tile { background: #fff; border: 1px solid #dfe1e4; border-radius: 10px; padding: 12px 16px; }
.tile b { display: block; font-size: 26px; line-height: 1.2; font-variant-numeric: tabular-nums; }
.tile span { color: #5b6470; font-size: 14px; }
h2 { font-size: 20px; margin: 34px 0 8px; }
h3 { font-size: 16px; margin: 0 0 4px; }
figure { margin: 0; } svg { width: 100%; height: auto; display: block; }
svg text { font-family: inherit; } figcaption { color: #5b6470; font-size: 14px; margin-top: 8px; }
table { border-collapse: collapse; width: 100%; } caption { text-align: left; color: #5b6470; }
th { text-align: left; font-weight: 600; } th, td { padding: 6px 14px 6px 0; vertical-align: top;
  border-top: 1px solid #e9ebed; overflow-wrap: anywhere; }
th, td.count { white-space: nowrap; font-variant-numeric: tabular-nums; width: 1%; }
th.rest, td.where { width: 32%; } td.name { width: 24%; }
.hint { color: #5b6470; }
"""


def page(release, results, *, due=None, isolated=True, anonymous=False) -> str:
    """The page of a class.

    results : of everyone, each with its score unless it has an error.
    due : the deadline, UTC without a zone.
    """
    marked = [result for result in results if not result.error]
    handed_in = [result for result in marked if result.file]
    graded = [result for result in marked if not result.empty]
    title = homework_title(release.name)
    nothing = '<section class="card">Nothing that could be run has been handed in.</section>'
    sections = [_tiles(results, handed_in, graded, due)]
    if not isolated:
        sections.append(f'<section class="card notes">{_h(NOT_ISOLATED)}</section>')
    if graded:
        sections += [
            "<h2>Points</h2>",
            _figure(_histogram(release, [result.score for result in graded])),
            "<h2>Questions</h2>",
            _figure(_bars(release, graded)),
            "<h2>What to explain again</h2>",
            _mistakes(release, graded),
        ]
    else:
        sections.append(nothing)
    if not anonymous:
        sections += ["<h2>Who needs attention</h2>", _attention(release, results)]
    when = f"Deadline {due:%Y-%m-%d %H:%M} UTC. " if due else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_h(title)}: the class</title>
<style>{STYLE}{MORE_STYLE}</style>
</head>
<body><main class="wide">
<header><div><h1>{_h(title)}: the class</h1>
<div class="who">{when}Points are those of the gradebook, by hand or automatic.</div></div></header>
{"".join(sections)}
</main></body>
</html>
"""


def _tiles(results, handed_in, graded, due) -> str:
    late = sum(bool(result.score.late) for result in handed_in)
    pending = sum(r.score.pending for r in results if not r.error)
    tiles = [(f"{len(handed_in)} of {len(results)}", "handed in")]
    tiles += [(late, "of them late")] if due else []
    tiles.append((len(handed_in) - len(graded), "could not be read"))
    if graded:
        totals = [result.score.total for result in graded]
        maximum = graded[0].score.maximum
        tiles += [
            (f"{median(totals):g}", f"median of {maximum:g} points"),
            (f"{mean(totals):.1f}", "mean"),
        ]
    if pending:
        tiles.append((pending, "answers to grade by hand"))
    if broken := sum(bool(result.error) for result in results):
        tiles.append((broken, "not graded: errors of the autograder"))
    items = "".join(f'<div class="tile"><b>{n}</b><span>{text}</span></div>' for n, text in tiles)
    return f'<section class="tiles">{items}</section>'


def _figure(parts: tuple[str, str]) -> str:
    picture, caption = parts
    return f'<figure class="card">{picture}<figcaption>{caption}</figcaption></figure>'


def _histogram(release, scores) -> tuple[str, str]:
    """Totals in bins of equal width; the last one holds its right edge too."""
    totals, maximum = [s.total for s in scores], scores[0].maximum
    bonus = sum(q.points for q in release.questions if is_bonus(q))
    width = max(1, math.ceil(maximum / 10))
    bins = math.ceil((maximum + bonus) / width)
    counts = Counter(min(int(total / width), bins - 1) for total in totals)
    left, right, top, bottom = 60, 880, 34, 200
    step, highest = (right - left) / bins, max(counts.values())
    tick = max(1, math.ceil(highest / 5))

    def x(points):
        return left + (points / width) * step

    def y(learners):
        return bottom - (bottom - top) * learners / (tick * math.ceil(highest / tick))

    parts, numbers = [], []
    for value in range(0, highest + tick, tick):
        parts.append(_line(left, y(value), right, y(value), "#e3e6e9"))
        parts.append(_words(left - 10, y(value) + 5, value, "end"))
    for place in range(bins):
        if count := counts[place]:
            parts.append(
                f'<rect x="{left + place * step + 2:.1f}" y="{y(count):.1f}" '
                f'width="{step - 4:.1f}" height="{bottom - y(count):.1f}" fill="#0072b2"/>'
            )
            number = _words(left + (place + 0.5) * step, y(count) - 5, count, weight=600)
            halo = '<text paint-order="stroke" stroke="#ffffff" stroke-width="5" '
            numbers.append(number.replace("<text ", halo))  # the median's line may cross it
    for edge in range(bins + 1):
        parts.append(_words(x(edge * width), bottom + 18, f"{edge * width:g}"))
    middle = median(totals)
    parts += [
        _line(left, bottom, right, bottom, "#22262b"),
        _line(x(middle), top - 14, x(middle), bottom, "#22262b", dashed=True),
        _words(x(middle), top - 20, f"median {middle:g}"),
        *numbers,
        _words((left + right) / 2, bottom + 42, "points"),
        _words(18, (top + bottom) / 2, "learners", turned=True),
    ]
    caption = f"Totals of the {len(totals)} learners whose notebook could be graded."
    spans = ", ".join(
        f"{place * width:g} to {(place + 1) * width:g} points: {counts[place]}"
        for place in range(bins)
        if counts[place]
    )
    return _svg(940, bottom + 54, f"Histogram. {caption} {spans}.", parts), (
        f"{caption} A total on a border counts on its right, except at the end."
    )


def _bars(release, graded) -> tuple[str, str]:
    """A bar of five parts per question, and the share of its points that was earned."""
    longest = max(len(question.function) for question in release.questions)
    left, right, height, top = max(200, 24 + 9 * longest), 790, 34, 66
    parts, words, place = [_patterns()], [], 200
    for status in FILLS:
        _, meaning = BADGES[status]
        parts += [_box(place, 12, 22, 16, status), _words(place + 30, 25, meaning, "start")]
        place += 62 + 7.2 * len(meaning)
    parts.append(_words(right + 62, 52, "share of points", weight=600))
    for row, question in enumerate(release.questions):
        upper = top + row * (height + 12)
        counts = Counter(kind(_mark(result, question)) for result in graded)
        earned = mean(r.score.by_cell[question.grade_id] for r in graded)
        parts.append(_words(left - 14, upper + 22, question.function, "end"))
        place = left
        for status, (_, _, ink) in FILLS.items():
            size = (right - left) * counts[status] / len(graded)
            if not size:
                continue
            parts.append(_box(place, upper, size, height, status))
            if size > 14:
                if FILLS[status][1]:  # a quiet ground for the number
                    parts.append(
                        f'<rect x="{place + size / 2 - 10:.1f}" y="{upper + 8}" width="20" '
                        f'height="18" rx="3" fill="{FILLS[status][0]}"/>'
                    )
                parts.append(
                    _words(place + size / 2, upper + 22, counts[status], colour=ink, weight=600)
                )
            place += size
        share = f"{100 * earned / question.points:.0f} %"
        parts.append(_words(right + 62, upper + 22, share + " (bonus)" * is_bonus(question)))
        spoken = ", ".join(f"{n} {BADGES[s][1]}" for s, n in counts.items())
        words.append(f"{question.function}: {spoken}; {share} of the points")
    bottom = top + len(release.questions) * (height + 12)
    for share in (0, 25, 50, 75, 100):
        place = left + (right - left) * share / 100
        parts += [
            _line(place, bottom - 4, place, bottom + 2, "#22262b"),
            _words(place, bottom + 18, f"{share} %"),
        ]
    parts.append(_words((left + right) / 2, bottom + 42, "share of learners"))
    return _svg(940, bottom + 54, f"Bars. {'. '.join(words)}.", parts), (
        f"Numbers in the bars are learners, {len(graded)} in all. Partly right: every value is "
        "right, and a later check fails, such as the gradient."
    )


def _mark(result, question):
    return next(mark for mark in result.marks if mark.grade_id == question.grade_id)


def _mistakes(release, graded) -> str:
    """Per question its commonest wrong answers; the question that cost most points first."""
    lost = {
        q.id: sum(q.points - r.score.by_cell[q.grade_id] for r in graded) for q in release.questions
    }
    cards = []
    for question in sorted(release.questions, key=lambda q: -lost[q.id]):
        wrong = [mark for r in graded if (mark := _mark(r, question)).status == "wrong"]
        if not wrong:
            continue
        first = {mark.cause: mark for mark in reversed(wrong)}
        common = Counter(mark.cause for mark in wrong).most_common()
        rows = "".join(
            f'<tr><td class="count">{count} ×</td><td>{_text(cause)}'
            f'<div class="hint">Hint: {_text(first[cause].details["hint"])}</div></td>'
            f'<td class="where">{_place(first[cause])}</td></tr>'
            for cause, count in common[:SHOWN]
        )
        rest = sum(count for _, count in common[SHOWN:])
        if rest:
            rows += f'<tr><td class="count">{rest} ×</td><td colspan="2">something else</td></tr>'
        cards.append(
            f'<section class="card"><h3>{_h(find(question.id).title)}, '
            f"<code>{_h(question.function)}</code></h3>"
            f"<table><caption>{len(wrong)} wrong or partly right; {lost[question.id]:g} points "
            f"lost in all</caption>{rows}</table></section>"
        )
    return "".join(cards) or '<section class="card">No wrong answers.</section>'


def _place(mark) -> str:
    return lecture_reference(mark.details["lecture"], file=False)


def _attention(release, results) -> str:
    worth = {manual.grade_id for manual in release.manual if manual.points}
    rows = []
    for result in results:
        reasons = []
        if result.error:
            reasons.append(f"not graded, an error of the autograder: {result.error}")
        elif result.empty:
            reasons.append(" ".join(result.notes))
        else:
            for status, words in (("not run", "could not be run"), ("unanswered", "unanswered")):
                names = [m.id.partition("/")[2] for m in result.marks if m.status == status]
                if names:
                    reasons.append(f"{words}: {', '.join(names)}")
            if empty := result.unanswered & worth:
                labels = ", ".join(sorted(empty))
                reasons.append(f"written answers left empty: {labels}")
        score = result.score
        if score and score.late:
            reasons.append(f"{duration(score.late)} late")
        if reasons:
            total = f"{score.total:g}" if score else "–"
            rows.append((result.student, total, "; ".join(reasons)))
    if not rows:
        return (
            '<section class="card">Everyone handed in, in time, and answered all that has points.'
            "</section>"
        )
    rows = sorted(rows, key=lambda row: (float(row[1]) if row[1] != "–" else -1.0, row[0]))
    body = "".join(
        f'<tr><td class="name">{_h(name)}</td><td class="count">{total}</td><td>{_h(why)}</td></tr>'
        for name, total, why in rows
    )
    return (
        '<section class="card"><table><tr><th>learner</th><th>points</th>'
        f'<th class="rest">why</th></tr>{body}</table></section>'
    )


# Pieces of pictures.


def _svg(width, height, alt: str, parts) -> str:
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{_h(alt)}" '
        f'font-size="14" fill="#22262b">{"".join(parts)}</svg>'
    )


def _patterns() -> str:
    ink = 'stroke="#16202a" stroke-width="1.6"'
    return (
        '<defs><pattern id="stripes" width="8" height="8" patternUnits="userSpaceOnUse" '
        f'patternTransform="rotate(45)"><path d="M0 0V8" {ink}/></pattern>'
        '<pattern id="dots" width="8" height="8" patternUnits="userSpaceOnUse">'
        '<circle cx="4" cy="4" r="1.1" fill="#16202a"/></pattern>'
        '<pattern id="cross" width="8" height="8" patternUnits="userSpaceOnUse">'
        '<path d="M0 0L8 8M8 0L0 8" stroke="#ffffff" stroke-width=".8"/></pattern></defs>'
    )


def _box(x, y, width, height, status) -> str:
    colour, pattern, _ = FILLS[status]
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    box = f'<rect {place} fill="{colour}" stroke="#22262b" stroke-width=".8"/>'
    return box + (f'<rect {place} fill="url(#{pattern})" opacity=".55"/>' if pattern else "")


def _line(x1, y1, x2, y2, colour, dashed=False) -> str:
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"{dashes}/>'
    )


def _words(x, y, text, anchor="middle", *, colour="", weight="", turned=False) -> str:
    style = (f' fill="{colour}"' if colour else "") + (f' font-weight="{weight}"' if weight else "")
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}{turn}>{_h(text)}</text>'
