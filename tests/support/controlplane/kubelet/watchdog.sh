#!/bin/sh
# Ends with its kubelet, however that one ended: kills the pods' processes, removes their addresses and,
# when no other kubelet runs on the machine, the mount points.
# Arguments: the kubelet's folder, its range of pod addresses, the folder that kubelets share.
read -r _
for file in "$1"/pids/[0-9]*; do
    [ -L "$file" ] || continue
    kill -KILL -- "-${file##*/}" 2>/dev/null
    # What has left the process group is still in the container's mount namespace. By now that one's number may
    # be another's; the mount of the file that it stands in is in the container's own only.
    namespace=$(cat "$file" 2>/dev/null)
    [ -n "$namespace" ] || continue
    mark=$(readlink "$file")
    for process in /proc/[0-9]*; do
        if [ "$(readlink "$process/ns/mnt" 2>/dev/null)" = "$namespace" ] &&
            grep -qF "$mark" "$process/mountinfo" 2>/dev/null; then
            kill -KILL "${process##*/}" 2>/dev/null
        fi
    done
done
rm -rf "$1/volumes" "$1/pids"
[ -n "$2" ] && ip route del local "$2" dev lo 2>/dev/null
exec 9>>"$3/lock"
if flock --nonblock --exclusive 9 && [ -e "$3/mount-points" ]; then
    sort -ru "$3/mount-points" | while read -r point; do
        if [ -d "$point" ]; then rmdir "$point"; else rm -f "$point"; fi
    done 2>/dev/null
    rm -f "$3/mount-points"
fi
