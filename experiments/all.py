"""All experiments, then the page: `python -m experiments.all`."""

from experiments import page
from experiments.plan import FOLDER, Plan, command


def run(plan: Plan) -> None:
    """One after the other; what is there already is not run again."""
    for each in page.SECTIONS:
        each.run(plan)
    page.describe(plan.folder)
    if plan.folder == FOLDER:
        page.main()


if __name__ == "__main__":
    command(run, __doc__)
