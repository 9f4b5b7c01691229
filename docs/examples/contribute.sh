lightning-windows-ddp fork 2.6.6 my-fork
cd my-fork
echo "# a better comment" >> src/lightning/fabric/strategies/launchers/ranks.py
git commit --all --fixup ":/^End ranks with"
GIT_SEQUENCE_EDITOR=: git rebase --interactive --autosquash --root
lightning-windows-ddp export .
