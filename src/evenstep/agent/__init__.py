"""What lives in a training process: recorder, steps, waits, pacing, locality, sharing.

The nouns, in the order a step flows through them:

    arming     waits for the first import that makes a process a rank     arming.py, bootstrap/
    Config     every setting, with its origin                             config.py, values.py
    Recorder   what the hooks call; writes the spool                      recorder.py, entries.py
    PhaseStack where the training thread's time goes                      phases.py, steps.py
    StepWork   what is done with a step that has ended                    step_work.py
    PaceHost   the pacer's host: what it is told, the delay it asks for   pace.py, steering.py
    Background samples, windows, messages between ranks, requests         background.py, windows.py,
                                                                          sharing.py, sampler.py
    Vigil      looks at where a late or stuck rank is                     vigil.py, frames.py
    LiveView   what rank 0 knows of the running job                       live.py, alarm.py
    Agent      all of it, started and stopped                             rank.py

Limits. Standard library only; no framework is known here (`hooks` feed the recorder through the
protocols of stacks.py); nothing raises into training, no lock is held across user code, and no
collective is issued on the training path.

To add a source of samples: a class in `host/sources`, named in its list.
"""
