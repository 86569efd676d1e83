"""The rows of the length benchmark are what a gateway would have seen."""

import itertools

import pytest
from length_data import MOST_STAGES, Program, load, mmlu_pro, rows_of
from length_speed import programs, prompts
from prepare import MMLU_PRO

from chimera_train.collect.imports.program import word_tokens
from chimera_train.errors import DataError
from chimera_train.history import History


def program(*outputs, question="How many?"):
    stages = [(f"step{i}", 5 + i, output) for i, output in enumerate(outputs)]
    return Program(question, question, 3, "flow", "small", stages)


def test_a_stage_is_followed_by_what_its_program_still_writes():
    rows = rows_of([program(7, 2, 4)])
    assert rows["target_tokens"].tolist() == [13, 6, 4]
    assert rows["prompt_tokens"].tolist() == [5, 6, 7]
    assert rows["history"].tolist() == [
        History(),
        History().after("step0", 5, 7),
        History().after("step0", 5, 7).after("step1", 6, 2),
    ]


def test_later_stages_count_without_being_rows():
    rows = rows_of([program(*[1] * (MOST_STAGES + 4))])
    assert len(rows) == MOST_STAGES
    assert rows["target_tokens"].iloc[0] == MOST_STAGES + 4


def test_programs_that_wrote_nothing_are_left_out():
    assert rows_of([program(0), program(1)])["program_id"].tolist() == ["small/1"]


def test_equal_texts_are_on_one_side_of_a_split():
    rows = rows_of([program(1, question="How many?"), program(1, question="how  many")])
    assert rows["question_id"].nunique() == rows["fold"].nunique() == 1


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(DataError, match=r"gsm8k_multi_model.*--data"):
        load(tmp_path, "gsm8k")


@pytest.fixture
def data(public_data):
    return public_data(MMLU_PRO).parents[1]


def test_more_programs_than_questions_have_texts_of_their_own(data):
    questions = len(list(mmlu_pro(data))) // 6
    texts = [own.text for own in programs(data, questions + 20, ["mathstral-7B"])]
    assert len(texts) == questions + 20
    assert not set(texts[questions:]) & set(texts[:questions])


def test_prompts_differ_and_are_as_long_as_asked(data):
    texts = list(itertools.islice(prompts(data, 110), 50))
    assert len(set(texts)) == 50
    assert {word_tokens(text) for text in texts} == {110}
