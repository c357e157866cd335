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
echo_check::suite!(single_shot, "floor-single-shot");
echo_check::suite!(single_shot_small_buffer, "floor-single-shot", "--buffer-bytes", "512");
echo_check::suite!(several_rings, "floor-single-shot", "--rings", "2";
    byte_exact, half_close, slow_reader, sigterm);
echo_check::suite!(provided_buffers, "floor-provided-buffers");
echo_check::suite!(few_provided_buffers, "floor-provided-buffers", "--buffers", "4", "--buffer-bytes", "512";
    byte_exact, half_close, out_of_descriptors, sigterm);
echo_check::suite!(multishot, "floor-multishot");
echo_check::suite!(multishot_small_buffer, "floor-multishot", "--buffer-bytes", "512");
