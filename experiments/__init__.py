"""The paper's experiments, and some beyond them: `python -m experiments.all`. What came out: docs/experiments.md.

Each experiment is a module with `run(plan)`, which fills CSV files and draws pictures in experiments/results, and
`section(folder)`, which makes its part of the page from those files alone. A run is a row of a CSV file; what is there
already is not run again.
"""
