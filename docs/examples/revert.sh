lightning-windows-ddp revert
