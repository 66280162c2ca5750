"""catalog: filters, sources, formats."""

import csv
import io


def test_gpus_carry_sources_and_dense_rates(traincast):
    rows = traincast("catalog", "gpus", "--format", "json").json["gpus"]
    assert len(rows) >= 50
    assert all(row["sources"] for row in rows)
    h200 = next(row for row in rows if row["name"] == "h200")
    assert h200["bf16_dense_tflop_per_second"] == 989 or 989 <= h200["bf16_dense_tflop_per_second"] < 990


def test_filter_needs_every_word(traincast):
    rows = traincast("catalog", "gpus", "rtx", "40", "--format", "json").json["gpus"]
    assert rows
    assert all("rtx" in row["name"] and "40" in row["name"] + row["display_name"] for row in rows)


def test_models_carry_parameters_and_recipe(traincast):
    rows = traincast("catalog", "models", "--format", "json").json["models"]
    assert len(rows) >= 40
    pythia = next(row for row in rows if row["name"] == "pythia-1b")
    assert pythia["parameters"] == 1_011_781_632
    assert (pythia["global_batch_size"], pythia["num_training_steps"]) == (1024, 143_000)


def test_csv_has_one_row_each(traincast):
    rows = list(csv.DictReader(io.StringIO(traincast("catalog", "gpus", "a100", "--format", "csv").out)))
    assert {"a100-40gb", "a100-80gb"} <= {row["name"] for row in rows}


def test_tables_fit_80_columns_and_name_sources_of_few(traincast):
    for arguments in (("gpus",), ("models",), ("gpus", "h200"), ("models", "pythia-1b")):
        outcome = traincast("catalog", *arguments)
        assert outcome.code == 0
        assert all(len(line) <= 80 for line in outcome.out.splitlines())
    assert "Sources" in traincast("catalog", "gpus", "h200").out


def test_no_match_is_an_empty_result_with_a_note(traincast):
    outcome = traincast("catalog", "gpus", "abacus")
    assert (outcome.code, outcome.out) == (0, "")
    assert "abacus" in outcome.err
