"""The paper's competitors and relatives, each as its source states it: for experiments and as oracles, not for speed.

Messages are the rows of Y (N, d), or one message (d,), centred already. A factor C is (d, k). Every function returns
the next value and changes none; nothing here draws random numbers.
"""
