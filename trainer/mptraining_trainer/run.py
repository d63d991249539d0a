"""One worker's run around `train`: the error's outcome, the last Event, and result.json."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, MutableMapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mptraining_api import events, launch, outcomes, run_folder
from mptraining_api.launch import WorkerIdentity
from mptraining_api.outcomes import Outcome
from mptraining_api.problems import Problem
from mptraining_api.resolved_job import ResolvedJob
from mptraining_storage import gcs_clients, storage
from mptraining_storage.outbox import Outbox
from mptraining_storage.retry import without_retries
from mptraining_trainer.checkpoints.claim import refuse_foreign_folder
from mptraining_trainer.devices.preemption import Preemption
from mptraining_trainer.export import model_server
from mptraining_trainer.host import native_bfloat16
from mptraining_trainer.job import function_call
from mptraining_trainer.report.errors import report_storage_retries, to_problem, unreachable_storage_as_invalid_data
from mptraining_trainer.report.oom_watch import OomWatch
from mptraining_trainer.report.program_output import ProgramOutput
from mptraining_trainer.report.scalar_writer import ScalarWriter
from mptraining_trainer.report.secrets import SecretValues
from mptraining_trainer.report.telemetry import Telemetry, peak_memory_bytes
from mptraining_trainer.report.tracking_processes import CLOSE_SECONDS, PREEMPTED_SECONDS, TrackingProcesses
from mptraining_trainer.scripts.job_of_script import job_of_script
from mptraining_trainer.train import train
from mptraining_trainer.training_result import TrainingResult
from mptraining_trainer.worker import Worker

if TYPE_CHECKING:
    from mptraining_trainer.report.progress_reporter import Reporter

# Seconds that a failed run waits for its last files.
_DRAIN_SECONDS = 30.0


def run(
    job: ResolvedJob,
    identity: WorkerIdentity,
    folder: str,
    preemption: Preemption,
    environment: MutableMapping[str, str],
) -> Outcome:
    """Train, report the outcome and return it; only exceptions that end the interpreter propagate."""
    secrets = SecretValues.from_environment(environment)
    outbox = Outbox()
    output = ProgramOutput(identity, folder, secrets, environment, outbox)
    telemetry = Telemetry(
        identity, folder, termination_log=environment.get(launch.TERMINATION_LOG), secrets=secrets, outbox=outbox
    )
    reporter = _reporter(identity, telemetry, environment)
    oom_watch = OomWatch(telemetry, identity, report=reporter.on_event if reporter else None)
    scalars = _scalars(identity, telemetry, folder, outbox)
    job = job_of_script(job, environment, telemetry.notice)
    exit_stack = ExitStack()
    exit_stack.enter_context(report_storage_retries(telemetry))
    worker = Worker(
        job,
        identity,
        telemetry,
        preemption,
        folder,
        float(environment.get(launch.PROGRESS_SECONDS, "10")),
        exit_stack,
        scalars=scalars,
        outbox=outbox,
    )
    trained: TrainingResult | None = None
    wait = 0.0
    tracking: TrackingProcesses | None = None
    try:
        wait = model_server.keep_seconds(job, identity, environment)
        refuse_foreign_folder(worker)
        output.start()
        tracking = TrackingProcesses(job, identity, folder, telemetry.notice, environment)
        _warn_about_ignored_settings(job, telemetry)
        trained = train(worker, environment)
        outcome, message, field = outcomes.SUCCEEDED, trained.message, None
        wait = _publish_returned(worker, trained, wait)
        if identity.is_chief:
            _publish_result(worker, trained, outcome, message)
    except Exception as error:  # noqa: BLE001 - whatever it is, it becomes an outcome and the last Event
        # The last checkpoint may still be on its way.
        outbox.drain(_DRAIN_SECONDS)
        has_responded = gcs_clients.endpoint().has_responded
        problem = error if isinstance(error, Problem) else to_problem(error, job)
        problem = unreachable_storage_as_invalid_data(problem, identity, has_responded=has_responded)
        if storage.is_remote(folder) and not has_responded:
            # Storage that never answered cannot take the events either.
            telemetry.disable_output()
        outcome, message, field = _reported(problem, environment)
        _report_exception(worker, outcome)
        # A mistake in the spec is one line; an error in the user's program or in the trainer needs its traceback.
        if environment.get(launch.DEBUG) or (outcome == outcomes.PROGRAM_FAILED and not isinstance(error, Problem)):
            sys.stderr.write(telemetry.redact(traceback.format_exc()))
    message = oom_watch.close(message, failed=outcome != outcomes.SUCCEEDED)
    telemetry.emit(
        events.Finished,
        reason=outcome.reason,
        exit_code=outcome.exit_code,
        message=message,
        field=field,
        step=trained.step if trained else None,
        metrics=trained.metrics if trained else {},
        warnings=trained.warnings if trained and trained.warnings else None,
        model=trained.model if trained else None,
        seconds=round(telemetry.seconds(), 3),
        training_seconds=trained.training_seconds if trained else None,
        first_record_seconds=_first_record_seconds(trained),
        input_bound_percent=trained.input_bound_percent if trained else None,
        peak_memory_bytes=peak_memory_bytes(),
        precision=_policy(trained),
        recoveries=len(trained.precision_state.recoveries) if trained and trained.precision_state else None,
        kept_seconds=wait if wait and trained is not None else None,
    )
    # Before the events, so that a warning is one of them.
    if scalars is not None:
        scalars.close()
    telemetry.close()
    with without_retries():
        # Threads that read records for later steps may be retrying.
        exit_stack.close()
    if reporter is not None:
        reporter.close()
    output.close()
    if tracking is not None:
        # They read the last event from the run folder. A preempted machine has a grace period of 15 s in all.
        preempted = outcome in (outcomes.PREEMPTED, outcomes.PEER_LOST)
        tracking.close(PREEMPTED_SECONDS if preempted else CLOSE_SECONDS, telemetry.now)
    return outcome


def _publish_returned(worker: Worker, trained: TrainingResult, wait: float) -> float:
    """Publish what a submitted function returned; return the seconds for which the folder is kept, at most `wait`."""
    returned = function_call.outcome(worker.identity.attempt, worker.telemetry.redact)
    if returned is not None and worker.identity.is_chief:
        function_call.publish(returned, worker.folder)
    if not wait or (returned is None and trained.model is None):
        return 0.0
    model_server.announce(worker.telemetry, worker.job, wait)
    return wait


def _report_exception(worker: Worker, outcome: Outcome) -> None:
    """Keep the exception that a submitted function raised, on any worker: in the run folder, without one in the log."""
    raised = function_call.outcome(worker.identity.attempt, worker.telemetry.redact)
    interrupted = outcome in (outcomes.PREEMPTED, outcomes.PEER_LOST, outcomes.STOPPED_BY_USER)
    if raised is None or not raised.raised or interrupted:
        return
    if worker.job.output is None:
        worker.telemetry.emit(events.Raised, result=function_call.as_line(raised))
    else:
        # The storage may be what failed; the outcome is reported in any case.
        with suppress(Problem):
            function_call.publish(raised, worker.folder)


def _reported(problem: Problem, environment: Mapping[str, str]) -> tuple[Outcome, str, str | None]:
    """Return the outcome and the message of a run that ended with the problem, and the field of the message."""
    outcome = outcomes.by_reason(problem.reason)
    file = environment.get(launch.STOPPED_BY_USER_FILE)
    if outcome != outcomes.PREEMPTED or file is None or not Path(file).exists():
        return outcome, str(problem), problem.field
    # The user of a local run pressed Ctrl-C; `where` is the step that was saved, if one was.
    text = f"Stopped by you: {problem.found}."
    if problem.where:
        text = f"Stopped by you at {problem.where}; the training state is saved. The next run resumes from here."
    return outcomes.STOPPED_BY_USER, text, None


def _reporter(identity: WorkerIdentity, telemetry: Telemetry, environment: Mapping[str, str]) -> Reporter | None:
    """Return the progress reporter of worker 0; None for other workers and where no operator has set a URL."""
    if not identity.is_chief or not environment.get(launch.PROGRESS_URL):
        return None
    from mptraining_trainer.report.progress_reporter import Reporter

    reporter = Reporter.from_environment(environment, telemetry.notice)
    if reporter is not None:
        telemetry.listeners.append(reporter.on_event)
    return reporter


def _scalars(identity: WorkerIdentity, telemetry: Telemetry, folder: str, outbox: Outbox) -> ScalarWriter | None:
    """Return the writer of the chief's TensorBoard scalars; None for other workers."""
    if not identity.is_chief:
        return None

    def warn(message: str) -> None:
        telemetry.notice("ScalarsNotKept", message, level="Warning")

    scalars = ScalarWriter(identity, folder, on_failure=warn, outbox=outbox)
    telemetry.listeners.append(scalars.on_event)
    return scalars


def _warn_about_ignored_settings(job: ResolvedJob, telemetry: Telemetry) -> None:
    if job.export.checkpoint == "Best" and job.program.script is not None:
        message = (
            "export.checkpoint: Best: a script's last model is exported; let its own ModelCheckpoint keep the best"
        )
        telemetry.notice("NotBest", message, level="Warning")


def _publish_result(worker: Worker, trained: TrainingResult, outcome: Outcome, message: str) -> None:
    job = worker.job
    speed = trained.step_seconds
    precision_state = trained.precision_state
    figures = trained.input_meter.figures if trained.input_meter else None
    examples = (job.global_batch_size or 0) * (job.training.gradient_accumulation_steps if job.training else 1)
    result = run_folder.Result(
        name=job.name,
        reason=outcome.reason,
        exit_code=outcome.exit_code,
        message=message,
        attempt=worker.identity.attempt,
        step=trained.step,
        metrics=trained.metrics,
        strategy=job.strategy,
        precision=precision_state.policy if precision_state else trained.policy or job.precision.policy,
        keras=job.keras,
        workers=job.workers,
        replicas_in_sync=job.replicas,
        global_batch_size=job.global_batch_size,
        step_seconds=speed,
        examples_per_second=examples / speed if speed and examples else None,
        input_bound_percent=trained.input_bound_percent,
        input_bytes=figures.received if figures else None,
        input_requests=figures.requests if figures else None,
        input_retries=figures.retries if figures else None,
        first_record_seconds=_first_record_seconds(trained),
        training_seconds=trained.training_seconds,
        seconds=worker.telemetry.seconds(),
        peak_memory_bytes=peak_memory_bytes(),
        skipped_steps=trained.skipped_steps,
        skipped_records=trained.skipped_records,
        recoveries=len(precision_state.recoveries) if precision_state else 0,
        recovered=precision_state.recoveries if precision_state else (),
        loss_scale=trained.loss_scale,
        gradient_norm=trained.gradient_norm,
        measured=precision_state.trials if precision_state else (),
        native_bfloat16=native_bfloat16() if job.accelerator.kind == "cpu" else None,
        notices=tuple(worker.telemetry.warnings),
        warnings=trained.warnings,
        model=trained.model,
        best=trained.best,
    )
    storage.write(storage.join(worker.folder, run_folder.RESULT), result.to_json().encode())


def _policy(trained: TrainingResult | None) -> str | None:
    if trained is None:
        return None
    return trained.precision_state.policy if trained.precision_state else trained.policy


def _first_record_seconds(trained: TrainingResult | None) -> float | None:
    seconds = trained.input_meter.first_record_seconds if trained and trained.input_meter else None
    return None if seconds is None else round(seconds, 3)
