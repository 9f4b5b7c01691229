lightning-windows-ddp status    # what is installed, and whether it is patched
lightning-windows-ddp apply
lightning-windows-ddp status
