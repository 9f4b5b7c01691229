for name in $(cat "$PATCHES/2.6/series"); do
    git am "$PATCHES/2.6/$name"
done
