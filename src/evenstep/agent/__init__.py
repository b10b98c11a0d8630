"""The part of evenstep inside a training process: recorder, steps, waits, pacing, sharing.

In the order a step flows through them:

    arming     waits for the first import that makes a process a rank     arming.py, bootstrap/
    Config     every setting, with its origin                             settings/
    Recorder   called by the hooks; writes the spool                      recording/
    PhaseStack the training thread's time by phase                        recording/
    StepWork   processes a step that has ended                            step_work.py
    PaceHost   feeds the pacer and applies its delays                     pace.py, steering.py
    Background samples, windows, messages between ranks, requests         background.py, sampler.py,
                                                                          exchange/
    Vigil      samples the stack of a late or stuck rank                  pulse/
    LiveView   rank 0's view of the running job                           exchange/live.py
    Agent      all of them, started and stopped                           rank.py

Limits. Standard library only; independent of frameworks (`hooks` feed the recorder through the
protocols of stacks.py); nothing raises into training, no lock is held across user code, and no
collective is issued on the training path.

To add a source of samples: a class in `host/sources`, named in its list.
"""
