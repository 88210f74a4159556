"""The command ``slackwater`` as an application of spark-submit, which takes a file whose name ends in .py.

As in: spark-submit ... PATH/slackwater/submit.py backfill -f group.yaml --from earliest
"""

import sys

if __name__ == "__main__":
    # The folder of a script comes first on the path. Here that is the package's own, whose modules have names
    # of others, such as kafka.
    del sys.path[0]
    from slackwater.cli import main

    sys.exit(main())
