from weir.trainer.step.timer import StepTimer


def test_every_part_has_the_time_since_the_part_before() -> None:
    moments = iter([10.0, 11.0, 13.5, 14.0])
    laps = StepTimer(lambda: next(moments))
    laps.end("draw")
    laps.end("loss")
    laps.end("draw")
    assert laps.seconds == {"draw": 1.5, "loss": 2.5}
