"""Levels that verdicts hang on, each said once: what is worth a name, what is most, what is few."""

SMALLEST_SHARE = 0.01  # of the step time: findings below it are not worth a reader's time
NAMED = 0.05  # of the step time: from here on a finding makes the headline
MOST = 0.5  # more than half: the usual state, the larger part
DOMINANT = 0.8  # of a whole: the rest does not count
MINOR = 0.1  # of the largest, or of all: less of it has no name beside it, and may be odd
NEARLY_ALL = 1 - MINOR
SIGMAS = 5.0  # standard deviations at which a single value stands out of noise
ERRORS = 4.0  # standard errors at which a mean or a median does
CLEARLY = 3.0  # of either, at which two levels differ
LOW = 0.1  # quantile of what takes no longer than it must
UNDISTURBED = 0.25  # quantile of transfers that a pause of the collector does not reach
SURE = 0.001  # p-value from which a trend is no chance
CHANGED = 1.25  # ratio of two levels that is worth a word
FEW_STEPS = 30  # with fewer, shares and intervals are rough
FEWEST = 4  # values, to have a level and a spread
SEVERAL = 3  # of whom one can be unlike the others
ASKED = 16  # ranks of each of which a replay tells what it costs alone
LISTED = 8  # entries of a list that people read
ROUND_STEPS = 8  # of local SGD, where it is offered
