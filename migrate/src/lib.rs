//! Where each vCPU runs, and how it moves
