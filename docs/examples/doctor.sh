lightning-windows-ddp doctor train.py
