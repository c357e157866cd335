//! The checks every peer has to pass, on each variant of the floor loops.

echo_check::suite!(epoll, "floor-epoll");
echo_check::suite!(epoll_small_buffer, "floor-epoll", "--buffer-bytes", "512");
echo_check::suite!(epoll_gathered, "floor-epoll", "--gather");
echo_check::suite!(epoll_gathered_small_buffer, "floor-epoll", "--gather", "--buffer-bytes", "512");
echo_check::suite!(epoll_rearmed, "floor-epoll", "--rearm");
echo_check::suite!(epoll_rearmed_small_buffer, "floor-epoll", "--rearm", "--buffer-bytes", "512");
echo_check::suite!(uring, "floor-uring");
echo_check::suite!(uring_few_buffers, "floor-uring", "--buffers", "4", "--buffer-bytes", "512");
echo_check::suite!(uring_split, "floor-uring", "--split");
echo_check::suite!(uring_incremental, "floor-uring", "--inc");
echo_check::suite!(uring_incremental_split, "floor-uring", "--inc", "--split");
// Without `out_of_descriptors`: the kernel accepts first and looks for a free slot then, so that it
// drops a connection for which there is none.
echo_check::suite!(uring_direct, "floor-uring", "--direct";
    byte_exact, half_close, slow_reader, sigterm);
