"""compare: rows, purchase, frontier, the least hardware that meets a demand."""

import pytest

BASE = ("compare", "--model", "pythia-410m", "--format", "json")


def test_rows_carry_the_best_plan_of_each_choice(traincast):
    document = traincast(*BASE, "--hardware", "a100-80gb:4", "--hardware", "H100:8x2").json
    assert [row["hardware"] for row in document["rows"]] == ["a100-80gb:4", "h100-sxm:8x2"]
    plan = traincast("plan", "--model", "pythia-410m", "--gpu", "a100-80gb", "--num-gpus", "4", "--format", "json").json
    assert document["rows"][0]["best"] == plan["best"]
    assert document["pareto"]


def test_frontier_holds_every_row_that_is_not_beaten(traincast):
    document = traincast(
        *BASE, "--hardware", "a100-80gb:1", "--hardware", "a100-80gb:8", "--hardware", "rtx-4090:1"
    ).json
    places = [(row["best"]["estimate"]["training_days"]["expected"], row["run_cost_usd"]) for row in document["rows"]]
    for index, (days, cost) in enumerate(places):
        beaten = any(d <= days and c <= cost and (d, c) != (days, cost) for d, c in places)
        assert (index in document["pareto"]) == (not beaten)


def test_purchase_counts_cards_and_machine(traincast):
    document = traincast(*BASE, "--hardware", "a100-80gb:4", "--hardware", "a100-80gb:8").json
    four, eight = (row["purchase_usd"] for row in document["rows"])
    assert four == 4 * 19_000 + 7_500
    assert eight == 8 * 19_000 + 10_500


def test_buying_charges_the_run_its_share_of_the_write_off(traincast):
    arguments = (*BASE, "--hardware", "a100-80gb:4", "--buy")
    (five,) = traincast(*arguments).json["rows"]
    (ten,) = traincast(*arguments, "--write-off-years", "10").json["rows"]
    days = five["best"]["estimate"]["training_days"]["expected"]
    assert five["run_cost_usd"] == pytest.approx(five["purchase_usd"] * days / (5 * 365.25))
    assert ten["run_cost_usd"] == pytest.approx(five["run_cost_usd"] / 2)


def test_least_hardware_that_meets_a_deadline(traincast):
    document = traincast(*BASE, "--hardware", "a100-80gb", "--deadline-days", "20").json
    (row,) = document["rows"]
    assert document["least"] == 0
    assert row["best"]["estimate"]["training_days"]["expected"] <= 20
    count = int(row["hardware"].partition(":")[2])
    assert count > 1
    smaller = traincast(*BASE, "--hardware", f"a100-80gb:{count // 2}", "--deadline-days", "20")
    assert smaller.code == 3
    assert smaller.json["rows"][0]["meets_deadline"] is False


def test_budget_counts_rent_or_with_buy_the_purchase(traincast):
    rent = traincast(*BASE, "--hardware", "a100-80gb:1", "--budget-usd", "20000")
    assert rent.json["rows"][0]["meets_budget"] is True
    assert rent.code == 0
    bought = traincast(*BASE, "--hardware", "a100-80gb:1", "--budget-usd", "20,000".replace(",", ""), "--buy")
    assert bought.json["rows"][0]["meets_budget"] is (bought.json["rows"][0]["purchase_usd"] <= 20_000)


def test_choice_where_nothing_fits_keeps_its_row_with_reasons(traincast):
    outcome = traincast(
        "compare",
        "--model",
        "pythia-12b",
        "--hardware",
        "rtx-3060-12gb:1",
        "--hardware",
        "h200:8",
        "--cpu-memory-gib",
        "32",
        "--format",
        "json",
    )
    assert outcome.code == 0
    small, large = outcome.json["rows"]
    assert small["best"] is None
    assert len(small["rejected"]) == 22
    assert large["best"] is not None


@pytest.mark.parametrize(
    "text", ["a100-80gb:0", "a100-80gb:x", ":4", "a100-80gb:4x", "a100-80gb:4x2x2", "a100-80gb:-1"]
)
def test_hardware_that_cannot_be_read_is_refused_with_the_form(traincast, text):
    outcome = traincast(*BASE, "--hardware", text)
    assert outcome.code == 2
    assert outcome.json["error"]["field"] == "hardware"
    assert text in outcome.json["error"]["message"]


def test_demands_need_what_they_measure(traincast, tmp_path):
    assert "--hardware" in traincast(*BASE[:3]).err
    assert "--buy" in traincast(*BASE[:3], "--hardware", "h100:1", "--write-off-years", "3").err
    outcome = traincast("compare", "--model", "gpt2", "--hardware", "h100:1", "--deadline-days", "3")
    assert outcome.code == 2
    assert "--num-training-tokens" in outcome.err


def test_table_and_csv(traincast):
    table = traincast(*BASE[:3], "--hardware", "a100-80gb:4", "--hardware", "h100:4", "--deadline-days", "30").out
    assert all(len(line) <= 80 for line in table.splitlines())
    assert "least" in table
    rows = traincast(*BASE[:3], "--hardware", "a100-80gb:4", "--hardware", "h100:4", "--format", "csv").out.splitlines()
    assert len(rows) == 3
    assert rows[0].startswith("hardware,purchase_usd")
