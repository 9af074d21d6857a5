"""What people look at: live view, report, TensorBoard, accounts; imports storage and what storage may import,
never comm.
"""
