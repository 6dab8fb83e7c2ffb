"""The pages beside the lectures: every place they name exists, and nothing they promise is missing.

`sources.md` says where each topic of four public texts is, `oral_exam.md` answers questions,
`reading.md` lists works. Lectures are reordered and rewritten; these tests notice.
"""

import functools
import json
import re
from pathlib import Path

import pytest

from website import build

LECTURES = Path(__file__).resolve().parents[2] / "lectures"
PAGES = ("sources.md", "oral_exam.md", "reading.md")
SECTION = re.compile(r"^#{2,3} (\d+(?:\.\d+)?) ·", re.MULTILINE)
QUESTION = re.compile(r"^## Question (\d+)\b", re.MULTILINE)
LINK = re.compile(r"(?<!\\)\[([^\]]*)\]\(([^)\s]+)\)")
page = pytest.mark.parametrize("name", PAGES)

# What the four texts name: methods, tools, systems, models and data. Names, not sentences.
NAMES = """
A2C; A3C; API; AReaL; Adam; Atari; BCE; Bellman; BoN; Bradley–Terry; C51; CEM; CISPO; CartPole;
ChatGPT; Clip-Higher; CoT; DAPO; DDPG; DPG; DPO; DQN; DeepSeek-R1; DeepSeek-V3; DeepSeekMath;
DeepSpeed; Differential; Dirac; Docker; Dota 2; Double DQN; Dr. GRPO; Dueling; E2B; ELBO; EOS; ERM;
Eulerian; FSDP; Firecracker; Fisher; GAE; GAIL; GDPO; GRPO; GSM8K; GSPO; Gaussian; HER; HuggingFace;
ICM; ILQL; INTELLECT-2; IPO; IRL; InstructGPT; Jensen; KL; KTO; KV cache; Kimi k1.5; LLM-as-judge;
Lagrangian; Let's Verify; LlamaRL; LoRA; MC; MDP; MLP; MSE; Making RL Fast; Megatron; MiniMax-M1;
MoE; Modal; Monte Carlo; N+ Implementation Details; NGD; NeMo-Aligner; Noisy; OAT; ORM; Online DPO;
Open Instruct; OpenAI o1; OpenRLHF; Ornstein–Uhlenbeck; PER; PP; PPO; PPO-Clip; PPO-Penalty; PRM;
PagedAttention; Pareto; Pinsker; Prefix caching; Prioritized Replay; PyTorch; Qwen-2.5-Math;
Qwen3-1.7B; R1-Zero; REINFORCE; RL Cheatsheet; RLHF; RLOO; RLVR; RM; RND; RadixAttention; Rainbow;
Random shooting; Ray; SAC; SAPO; SARSA; SFT; SGLang; SG; SGD; SWE-bench; Seita; Self-Rewarding;
SkyRL; TD; TD3; TIS; TOPR; TP; TRL; TRPO; TV; TVD; Taylor; Tülu 3; Unpacking DPO and PPO; VAPO;
VERL; Value-Calibrated PPO; Weng; Williams; cross-entropy method; curriculum; gVisor; n-step;
natural gradient; offline RL; packing; planning; reasoning-gym; rejection sampling; rubric; shaping;
speculative decoding; spell_backward; tensor-parallel; test-time compute; vLLM; whitening
"""
# A number of sources.md → the lecture whose text or outputs must show it.
NUMBERS = {
    "02": [".0012", ".189", ".00091", ".0576", ".0009", ".0288", ".1152", ".434", ".431"],
    "03": ["2.14"],
    "04": ["1000", "-0.13"],
    "05": ["26.7", "15.6", ".218", ".864"],
    "06": ["68"],
    "07": ["252", "140"],
    "08": ["2.61", "1.86", ".109", "2.65", "1.75"],
    "09": [".464", ".932", ".1818", ".0909"],
    "10": [".92"],
    "11": ["3.25", ".13"],
    "14": [".76", "−.08"],
}


@functools.cache
def read(path: Path) -> str:
    """The text of a page, or of a notebook's Markdown cells."""
    text = path.read_text("utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = json.loads(text)["cells"]
    return "\n".join("".join(c["source"]) for c in cells if c["cell_type"] == "markdown")


@functools.cache
def shown(path: Path) -> str:
    """All words of a notebook: Markdown, code and the text of its outputs, without pictures."""
    parts = []
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        parts.append("".join(cell["source"]))
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            parts += ["".join(output.get("text", [])), "".join(data.get("text/plain", []))]
            html = "".join(data.get("text/html", [])) + "".join(data.get("text/markdown", []))
            parts.append(re.sub(r"base64,[\w+/=]*", "", html))
    return "\n".join(parts)


def lecture_paths() -> list[Path]:
    return sorted(LECTURES.glob("[0-9][0-9]_*.ipynb"))


@functools.cache
def tags() -> frozenset[str]:
    found = (re.findall(r"\\tag\{([A-Z]{2,4}-\d+)\}", read(path)) for path in lecture_paths())
    return frozenset(tag for some in found for tag in some)


def slug(heading: str) -> str:
    """The anchor that a Markdown heading gets."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def lost_places(text: str) -> list[str]:
    """Every place named in the text of a page in lectures/ that does not exist."""
    lost = []
    for label, target in LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (LECTURES / name).resolve() if name else None
        if path and not path.exists():
            lost.append(target)
            continue
        content = read(path) if path and path.suffix in {".md", ".ipynb"} else text
        if anchor and anchor not in {slug(h) for h in re.findall(r"^#+ (.*)", content, re.M)}:
            lost.append(target)
        if re.match(r"\d\d\b", label) and path and not path.name.startswith(label[:2] + "_"):
            lost.append(f"{label} → {target}")
        sections = set(SECTION.findall(content))
        named = re.findall(r"§([\d.]+)", label)
        lost += [f"{label} → {target}" for section in named if section not in sections]
        asked, named = set(QUESTION.findall(content)), re.findall(r"question (\d+)", label)
        lost += [f"{label} → {target}" for question in named if question not in asked]
    known = tags()
    lost += [tag for tag in re.findall(r"\[([A-Z]{2,4}-\d+)\](?!\()", text) if tag not in known]
    return lost


@page
def test_every_place_exists(name):
    assert lost_places((LECTURES / name).read_text("utf-8")) == []


@page
def test_the_start_page_and_the_site_lead_to_it(name):
    assert f"]({name})" in read(LECTURES / "README.md")
    assert f"lectures/{name}" in build.BESIDE


def test_a_place_that_does_not_exist_is_noticed():
    found = lost_places(
        "[05 §3.2](05_kl_regularisation.ipynb) [05 §3.9](05_kl_regularisation.ipynb) [KL-7] "
        "[KL-99] [06](05_kl_regularisation.ipynb) [x](nowhere.md) [y](notation.md#nowhere) "
        "[homework 2 question 9](../homework/hw2_clipping_and_gae/hw2_clipping_and_gae.ipynb)"
    )
    assert sorted(found) == sorted(
        [
            "05 §3.9 → 05_kl_regularisation.ipynb",
            "06 → 05_kl_regularisation.ipynb",
            "nowhere.md",
            "notation.md#nowhere",
            "homework 2 question 9 → ../homework/hw2_clipping_and_gae/hw2_clipping_and_gae.ipynb",
            "KL-99",
        ]
    )


def test_every_name_of_the_sources_has_a_place():
    text = read(LECTURES / "sources.md").lower()
    names = [name.strip() for name in NAMES.replace("\n", " ").split(";")]
    assert len(names) > 150
    lost = [name for name in names if not re.search(rf"(?<!\w){re.escape(name.lower())}", text)]
    assert lost == []


def test_every_row_of_the_sources_has_a_place_and_a_verdict():
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        for line in read(LECTURES / "sources.md").split("## Every name")[0].splitlines()
        if line.startswith("| ") and not line.startswith("| |")
    ]
    tables = [row for row in rows if len(row) == 3 and row[1] != "here" and "[" in row[1]]
    assert len(tables) > 120
    for topic, where, verdict in tables:
        assert topic
        assert verdict, topic
        assert re.search(r"\]\(|lecture \d\d", where), topic
    corrected = [row for row in tables if row[2] != "–"]
    assert len(corrected) >= 60


def section(path: Path, number: str) -> str:
    """The text of a numbered section, with its subsections."""
    inside, found = False, []
    for line in read(path).splitlines():
        heading = SECTION.match(line)
        if heading:
            inside = heading[1] == number or heading[1].startswith(f"{number}.")
        elif line.startswith("## "):
            inside = False
        found += [line] if inside else []
    return "\n".join(found)


def test_a_name_occurs_in_a_section_it_is_sent_to():
    """Sections are renumbered; what stands in them says whether a place is still the right one."""
    table = read(LECTURES / "sources.md").split("## Every name, one place")[1]
    rows = [line.split("|")[2] for line in table.splitlines() if line.startswith("| ")]
    lost, sent = [], 0
    for entry in (entry for row in rows for entry in row.split(" · ")):
        texts = [
            section(LECTURES / target, number).lower()
            for label, target in LINK.findall(entry)
            for number in re.findall(r"§([\d.]+)", label)
        ]
        words = set(re.findall(r"[^\W_]{2,}", entry.split("[")[0].lower())) - {"and", "the", "of"}
        sent += bool(texts)
        if texts and not any(word in text for word in words for text in texts):
            lost.append(entry)
    assert sent > 90
    assert lost == []


@pytest.mark.parametrize("number", NUMBERS)
def test_numbers_of_the_sources_are_those_of_the_lectures(number):
    path = next(LECTURES.glob(f"{number}_*.ipynb"))
    words = shown(path)
    text = read(LECTURES / "sources.md")
    for value in NUMBERS[number]:
        plain = value.replace("−", "-")
        assert value in text or plain.replace("-0.", "−.") in text, value
        assert any(v in words for v in (value, plain, plain.replace("-.", "-0."))), value


def test_every_acronym_occurs_in_the_lecture_that_teaches_it():
    """As an acronym, or spelled out: lectures prefer words."""
    glossary = read(LECTURES / "notation.md").split("## Acronyms")[1]
    there = {path.name[:2]: shown(path).lower() for path in lecture_paths()}
    said_otherwise = {"EOS": "end token", "MSE": "squared distance"}
    lost = []
    for line in glossary.splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 5 or not re.match(r"[\d, –]+$", cells[3]):
            continue
        words = [word.strip("* ") for word in cells[0].split(",")]
        spelled = re.sub(r"\(.*?\) ?", "", cells[1]).split(", ")
        ways = [*words, *spelled, *(said_otherwise[w] for w in words if w in said_otherwise)]
        texts = [there[n] for n in re.findall(r"\d\d", cells[3]) if n in there]
        if texts and not any(way.lower() in text for way in ways for text in texts):
            lost.append((words, cells[3]))
    assert lost == []


def questions() -> list[str]:
    text = read(LECTURES / "oral_exam.md")
    return re.findall(r"<details>(.*?)</details>", text, flags=re.DOTALL)


def test_every_question_of_the_oral_exam_has_an_answer_and_a_link():
    assert 40 <= len(questions()) <= 60
    for number, block in enumerate(questions(), 1):
        question, _, answer = block.partition("</summary>")
        assert f"<b>{number}.</b>" in question
        assert len(question) > 30, question
        answer, _, where = answer.partition("\nRead: ")
        assert 25 <= len(answer.split()) <= 190, (number, len(answer.split()))
        assert re.search(r"\d\d( §[\d.]+)?.*\.ipynb|lecture \d\d", where), question


def test_reading_marks_five_works_and_says_what_to_read():
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in read(LECTURES / "reading.md").splitlines()
        if line.startswith("| ") and not line.startswith("| when")
    ]
    assert 28 <= len(rows) <= 40
    assert all(len(row) == 4 and all(row) for row in rows)
    assert sum("★" in row[0] for row in rows) == 5
    order = [re.findall(r"\d\d", row[0])[0] for row in rows if re.search(r"\d\d", row[0])]
    assert order == sorted(order)


def test_arxiv_numbers_of_the_reading_list_are_those_the_course_cites():
    """A number that a lecture or a docstring also cites cannot differ from it unnoticed."""
    cited = {}
    sources = [*lecture_paths(), *LECTURES.parent.glob("policy_gradients/*.py")]
    for path in sources:
        for number in re.findall(r"\b\d{4}\.\d{5}\b", path.read_text("utf-8")):
            cited[number] = path
    own = set(re.findall(r"arXiv (\d{4}\.\d{5})", read(LECTURES / "reading.md")))
    later = {  # cited by lectures 16 to 20, looked up on arXiv
        "2210.10760", "2305.20050", "2206.11871", "1802.09477", "1805.00909", "2401.01879",
    }  # fmt: skip
    assert own - set(cited) <= later
    assert len(own) > 30
