"""A second labelled corpus by another hand: shares no code with what it judges, nor with tests.

A case is a training job with a fault in it, run in max-plus arithmetic (`machine`), and the same
job and seed without the fault. The faulty run is left as a real trace folder and diagnosed through
`evenstep diagnose --json`; the two lengths of the run are the truth.

The rules by which cases are labelled and judged. They were written before any score was seen, but
for the bands of cost, which were added after a look at tuning seeds:

- *Loss* of a fault: (T with − T without) ÷ T with, T being the mean over ranks of when each has
  done everything. Of two faults each is worth its Shapley value. Cases that lose less than 5 % are
  dropped, not judged.
- *Mode first*: the first finding is of one of the modes that an honest reader may call the fault.
  Findings come worst first, so those of structure (below) that truly costs this job more than the
  fault does may stand before it.
  Several are accepted only where no record could tell them apart: a slow node is a straggler or
  locality, and so is a slow rank that is alone on its node; a rank that is a whole stage, or a node
  that is whole stages, is a straggler or an imbalance; lengths on a device whose
  forward and backward are not seen apart are noise as well; a link that is slow for everybody is
  the fabric's, whatever it is called; a single rank that feeds its device slowly is late as well;
  ranks that are slow in strict turns swing in opposite phase, which is an oscillation as well;
  a rank that came late into the first step is late, whatever held it.
- *Culprits*: `where.ranks` of that finding are exactly the ranks at fault; of a node, its ranks or
  its name; of a link, its node and at most others of one group that is slow. They are not asked for
  where everybody is at fault, or where nobody could tell who: links in every group, rotations,
  lengths, loaders or collectors of all ranks.
- *Cost*: severities of the findings of accepted modes that name the culprits, summed, within 10 %
  of the loss. Where no record can tell how much was there without the fault, every truth between
  the two extremes is right: a slow rank mended is as it was by nature, or like its peers (constant
  differences of up to 2 % are nobody's knowledge); a fabric that is slow in all its transfers may
  have its rated bandwidth or an infinite one; lengths may be told from the job's noise, or, where
  that noise too is shared by forward and backward, not; nor turns of all ranks, so that what is
  said of both may be what both cost. Where other worlds leave the very same
  trace (devices that are always fed too slowly may have nothing to do, or as much as their hosts,
  unless their driver was sampled), every cost between theirs is right, but the interval of its
  remedy must hold the loss.
- *False finding*: for each mode, the sum of its severities less what removing its structure truly
  gives back in this very job is 5 % or more; with the fault in place or once it is mended,
  whichever is more, since parts may be booked in either order. The structure of noise
  (amplification; imbalance too, where a rank's noise is shared by forward and backward) is removed
  by giving every rank its mean; that of constant differences (straggler, locality, imbalance) by
  giving all ranks the same mean; bandwidth by transfers of no time; latency by α of no time;
  congestion by transfers without noise. Nothing else is in a job that was not put there. The
  accepted modes have their loss on top.
- *Two causes*: each is found in some finding of its modes with its culprits, its severity within 25
  % of the Shapley value. Causes worth less than 5 % are not asked for.
- *Terminal* cases (hang, death, restarts, staleness, several sizes): the mode first, the culprits
  where there are any, no cost unless the case states one.
"""
