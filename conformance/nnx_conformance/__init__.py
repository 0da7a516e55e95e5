"""Running the specification on a target, and judging what comes out.

What is tested:
    targets.py      loading a target by name
    features.py     what a target has and what it lacks
    describe.py     versions of the target and of everything around it

Inside pytest:
    plugin.py       the plugin's options, and when it wakes up
    session.py      its work in a session with a target: loading, selecting, judging
    fixtures.py     what a test of the specification is given
    isolation.py    a thread for each test
    outcomes.py     what an outcome is, and how outcomes join
    failures.py     what is told of a test that failed
    events.py       how the session tells another process what happens

Around it:
    running.py      starting pytest on a target in a process of its own, and following it
    results.py      what is known of a run, at any moment of it
    reports.py      results as JSON and as JUnit XML
    rendering.py    results for people
    proofs.py       the proof that every clause can fail
    faults/         the single defects that prove it
    upstream/       Flax's own tests, guides and examples as a second witness
    cli.py          the command line
    commands.py     the command `run`
    listing.py      the commands `list`, `show` and `features`
    usage.py        what a user is told who uses it wrongly
"""
