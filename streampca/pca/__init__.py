"""The mathematics: functions of arrays that do no input or output and depend on no clock and no hidden randomness.

Letters as in the paper (Amid & Warmuth): d dimensions, k components, y a message (centred), C (d×K) the factor,
C† (K×d) its pseudo-inverse, S = (CᵀC)⁻¹, x = C†y, r = Cx − y. Also: K = k + oversampling, N = CᵀC, and for a block of
B messages the matrices Y (B×d), P = YC (B×K), G = YYᵀ (B×B). Messages are rows here, columns in the paper. Where to
start reading: docs/mathematics.md.
"""
