lightning-windows-ddp fork 2.6.6 lightning-2.6.6
pip install -e lightning-2.6.6
